"""A request to act: what it brings for a policy, and all that is refused before it is decided."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from deploy import jpeg, wire
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix

MEMORY = ("tokens", "slot_time", "slot_count")
"""Arrays of a `PolicyState`, by the names of its fields."""
RAW, JPEG = ("images",), ("jpeg", "jpeg_bytes")
"""Arrays that bring the pictures: either these or those."""
SETTLED = ("prefix_values", "prefix_weight")
GUIDED = ("guide_values", "guide_weight")
"""Arrays of a `Prefix`: one that the policy was trained to go on from, or one that guides it."""
LONGEST = 1000
"""Characters that an instruction has to be shorter than."""


class Refused(ValueError):
    """A request that is a frame and may not be done; the connection stays."""


class Lacking(Refused):
    """A request that goes on from a memory which the server does not hold."""


class Entry(NamedTuple):
    """One array of a request, without its axis of rows."""

    dtype: np.dtype[Any]
    """What it is made of."""
    shape: tuple[int, ...]
    """Shape of a row."""
    low: float = -math.inf
    """Smallest number in it."""
    high: float = math.inf
    """Largest number in it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that was checked."""

    task: tuple[str, ...]
    """Instruction of each row."""
    arrays: dict[str, np.ndarray]
    """Arrays by the names of `Form.entries`, rows first; pictures decoded, memory filled in."""

    @property
    def rows(self) -> int:
        """Arms that are to be decided for."""
        return len(self.task)


class Form:
    """What requests for one policy look like: found out once, since it is the same for all.

    Args:
        policy: Who decides.
        rows: Most arms of one request.
    """

    def __init__(self, policy: ArmPolicy, rows: int) -> None:
        self.rows, robot = rows, policy.robot
        self.camera, cameras = robot.cameras[0], len(robot.cameras)
        pixels = (self.camera.height_px, self.camera.width_px)
        real = np.dtype(np.float32)
        state, chunk = memory(policy.initial_state(1)), tuple(policy.noise_shape[1:])
        self.entries = {
            "images": Entry(np.dtype(np.uint8), (cameras, *pixels, 3)),
            "image_ok": Entry(np.dtype(np.bool_), (cameras,)),
            "proprio": Entry(real, (len(robot.channels),)),
            **{name: Entry(real, value.shape[1:]) for name, value in state.items()},
            "noise": Entry(real, tuple(policy.noise_shape)),
            **{name[0]: Entry(real, chunk) for name in (SETTLED, GUIDED)},
            **{name[1]: Entry(real, chunk[:1], 0.0, 1.0) for name in (SETTLED, GUIDED)},
            "time_s": Entry(np.dtype(np.float64), (), low=0.0),
        }
        self.jpeg_bytes = Entry(np.dtype(np.int64), (cameras,))
        row = sum(e.dtype.itemsize * math.prod(e.shape) for e in self.entries.values())
        longest = rows * (row + cameras * (jpeg.SPARE + self.jpeg_bytes.dtype.itemsize))
        self.body_bytes = min(longest, wire.BODY_BYTES)
        """Longest body of a request that can be good."""

    def read(
        self, task: Any, arrays: dict[str, np.ndarray], kept: dict[str, np.ndarray] | None
    ) -> Request:
        """Return a request that may be decided.

        Args:
            task: Instructions as they came.
            arrays: Arrays as they came.
            kept: Memory that the server keeps and the request goes on from; None where it brings
                its own.

        Raises:
            Refused: something is missing, unknown, of another shape or type, or out of range.
        """
        pictures = JPEG if "jpeg" in arrays else RAW
        expected = self.entries.keys() - RAW | set(pictures)
        if kept is not None:
            expected -= set(MEMORY)
        for names in (SETTLED, GUIDED):  # at most one of them, and whole
            if not arrays.keys() & set(names):
                expected -= set(names)
        if expected >= {*SETTLED, *GUIDED}:
            raise Refused("a prefix to go on from and one that guides; send one of them")
        if expected != arrays.keys():
            wrong = min(expected ^ arrays.keys())
            raise Refused(
                f"array {wrong!r:.40} is missing or unknown; expected {', '.join(sorted(expected))}"
            )
        rows = self._rows(task)
        given = {**arrays, **(kept or {})}
        if pictures == JPEG:
            given["images"] = self._decoded(given.pop("jpeg"), given.pop("jpeg_bytes"), rows)
        for name, value in given.items():
            _check(name, value, self.entries[name], rows)
        return Request(task=tuple(task), arrays=given)

    def _rows(self, task: Any) -> int:
        words = isinstance(task, list) and all(
            isinstance(one, str) and len(one) < LONGEST for one in task
        )
        rows = len(task) if words else 0
        if not 1 <= rows <= self.rows:
            raise Refused(
                f"task: expected 1 to {self.rows} instructions of less than {LONGEST} characters, "
                "one for each row"
            )
        return rows

    def _decoded(self, data: np.ndarray, lengths: np.ndarray, rows: int) -> np.ndarray:
        _check("jpeg_bytes", lengths, self.jpeg_bytes, rows)
        if (data.dtype.name, data.ndim) != ("uint8", 1):
            raise Refused(f"jpeg: got {data.dtype} {data.shape}, expected uint8 of one axis")
        try:
            return jpeg.decode(data, lengths, self.camera.height_px, self.camera.width_px)
        except ValueError as error:
            raise Refused(str(error)) from error


def _check(name: str, got: np.ndarray, entry: Entry, rows: int) -> None:
    """Raise Refused unless an array is what is expected of it."""
    if got.dtype != entry.dtype or got.shape != (rows, *entry.shape):
        raise Refused(
            f"{name}: got {got.dtype} {got.shape}, expected {entry.dtype} {(rows, *entry.shape)}"
        )
    if got.dtype.kind == "f" and not np.isfinite(got).all():
        raise Refused(f"{name}: is not finite; hold the arm, and observe anew")
    if entry.low > -math.inf and (got < entry.low).any():
        raise Refused(f"{name}: is below {entry.low:g}; hold the arm, and observe anew")
    if entry.high < math.inf and (got > entry.high).any():
        raise Refused(f"{name}: is above {entry.high:g}; hold the arm, and observe anew")


def memory(state: PolicyState) -> dict[str, np.ndarray]:
    """Return a state's arrays f32 by name, rows first."""
    return {name: np.asarray(getattr(state, name), np.float32) for name in MEMORY}


def decide(policy: ArmPolicy, requests: Sequence[Request]) -> list[dict[str, np.ndarray]]:
    """Decide several requests in one call; return values f32 [b, k, u] and the new memory of each.

    What is returned shares no memory with anything: it outlives the next call of the policy.
    """
    first = requests[0].arrays
    given = {
        name: np.concatenate([one.arrays[name] for one in requests]) if len(requests) > 1 else value
        for name, value in first.items()
    }
    obs = Observation(
        images=given["images"], image_ok=given["image_ok"], proprio=given["proprio"],
        task=tuple(task for one in requests for task in one.task), time_s=given["time_s"],
    )  # fmt: skip
    state = PolicyState(**{name: given[name] for name in MEMORY})
    chunk, new = policy.act(obs, state, given["noise"], _prefix(given))
    return _split(chunk, new, [one.rows for one in requests])


def _prefix(given: dict[str, np.ndarray]) -> Prefix | None:
    for guided, names in ((False, SETTLED), (True, GUIDED)):
        if names[0] in given:
            return Prefix(values=given[names[0]], weight=given[names[1]], guided=guided)
    return None


def _split(
    chunk: ActionChunk, new: PolicyState, rows: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    whole = {"values": np.asarray(chunk.values, np.float32), **memory(new)}
    found, begin = [], 0
    for count in rows:
        found.append({name: value[begin : begin + count].copy() for name, value in whole.items()})
        begin += count
    return found
