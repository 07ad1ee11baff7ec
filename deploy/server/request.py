"""A request to act: what it must bring, and everything that is refused before it is decided."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from deploy.server import jpeg, wire
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.utils.arrays import to_numpy

RAW, JPEG = ("images",), ("jpeg", "jpeg_bytes")
"""Arrays of the images: either raw or JPEG."""
PREFIX = ("prefix_values", "prefix_weight")
GUIDE = ("guide_values", "guide_weight")
"""Arrays of a `Prefix`: one that the policy was trained to continue, or one that guides it."""
MAX_CHARACTERS = 1000
"""An instruction must be shorter than this."""


class Refused(ValueError):
    """A well-formed request that is refused; the connection stays open."""


class StateNotHeld(Refused):
    """A request that names a memory which the server does not hold."""


class ArraySpec(NamedTuple):
    """One array of a request, without the axis of rows."""

    dtype: np.dtype[Any]
    """Type of its numbers."""
    shape: tuple[int, ...]
    """Shape of a row."""
    low: float = -math.inf
    """Smallest allowed number."""
    high: float = math.inf
    """Largest allowed number."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request."""

    task: tuple[str, ...]
    """Instruction of each row."""
    arrays: dict[str, np.ndarray]
    """Arrays by the names of `RequestSpec.entries`, rows first; images decoded, memory included."""
    memory: tuple[str, ...]
    """Names of those that are tensors of the policy's state."""

    @property
    def rows(self) -> int:
        """Number of arms."""
        return len(self.task)


class RequestSpec:
    """Arrays that a request for one policy must have.

    Args:
        policy: The served policy.
        rows: Most arms of one request.
    """

    def __init__(self, policy: ArmPolicy, rows: int) -> None:
        self.rows, robot = rows, policy.robot
        self.camera, cameras = robot.cameras[0], len(robot.cameras)
        pixels = (self.camera.height_px, self.camera.width_px)
        real = np.dtype(np.float32)
        state, chunk = memory(policy.initial_state(1)), tuple(policy.noise_shape[1:])
        self.memory = tuple(state)
        self.entries = {
            "images": ArraySpec(np.dtype(np.uint8), (cameras, *pixels, 3)),
            "image_ok": ArraySpec(np.dtype(np.bool_), (cameras,)),
            "proprio": ArraySpec(real, (len(robot.channels),)),
            **{name: ArraySpec(real, value.shape[1:]) for name, value in state.items()},
            "noise": ArraySpec(real, tuple(policy.noise_shape)),
            **{name[0]: ArraySpec(real, chunk) for name in (PREFIX, GUIDE)},
            **{name[1]: ArraySpec(real, chunk[:1], 0.0, 1.0) for name in (PREFIX, GUIDE)},
            "time_s": ArraySpec(np.dtype(np.float64), (), low=0.0),
        }
        self.jpeg_bytes = ArraySpec(np.dtype(np.int64), (cameras,))
        row = sum(e.dtype.itemsize * math.prod(e.shape) for e in self.entries.values())
        longest = rows * (row + cameras * (jpeg.SPARE + self.jpeg_bytes.dtype.itemsize))
        self.body_bytes = min(longest, wire.BODY_BYTES)
        """Longest body of a valid request."""

    def read(
        self, task: Any, arrays: dict[str, np.ndarray], held: dict[str, np.ndarray] | None
    ) -> Request:
        """Return a checked request.

        Args:
            task: Instructions as received.
            arrays: Arrays as received.
            held: Memory that the server holds and the request names; None if the request brings
                its own.

        Raises:
            Refused: something is missing, unknown, of another shape or type, or out of range.
        """
        images = JPEG if "jpeg" in arrays else RAW
        expected = self.entries.keys() - RAW | set(images)
        if held is not None:
            expected -= set(self.memory)
        for names in (PREFIX, GUIDE):  # at most one of them, and complete
            if not arrays.keys() & set(names):
                expected -= set(names)
        if expected >= {*PREFIX, *GUIDE}:
            raise Refused("got a prefix to continue and one that guides; send one of them")
        if expected != arrays.keys():
            wrong = min(expected ^ arrays.keys())
            raise Refused(
                f"array {wrong!r:.40} is missing or unknown; expected {', '.join(sorted(expected))}"
            )
        rows = self._rows(task)
        values = {**arrays, **(held or {})}
        if images == JPEG:
            values["images"] = self._decoded(values.pop("jpeg"), values.pop("jpeg_bytes"), rows)
        for name, value in values.items():
            _check(name, value, self.entries[name], rows)
        return Request(task=tuple(task), arrays=values, memory=self.memory)

    def _rows(self, task: Any) -> int:
        valid = isinstance(task, list) and all(
            isinstance(text, str) and len(text) < MAX_CHARACTERS and _is_text(text) for text in task
        )
        rows = len(task) if valid else 0
        if not 1 <= rows <= self.rows:
            raise Refused(
                f"task: expected 1 to {self.rows} instructions of less than {MAX_CHARACTERS} "
                "characters, one for each row"
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


def _check(name: str, got: np.ndarray, entry: ArraySpec, rows: int) -> None:
    """Raise Refused unless an array has its expected type, shape and range."""
    if got.dtype != entry.dtype or got.shape != (rows, *entry.shape):
        raise Refused(
            f"{name}: got {got.dtype} {got.shape}, expected {entry.dtype} {(rows, *entry.shape)}"
        )
    if got.dtype.kind == "f" and not np.isfinite(got).all():
        raise Refused(f"{name}: is not finite; hold the arm, and observe again")
    if entry.low > -math.inf and (got < entry.low).any():
        raise Refused(f"{name}: is below {entry.low:g}; hold the arm, and observe again")
    if entry.high < math.inf and (got > entry.high).any():
        raise Refused(f"{name}: is above {entry.high:g}; hold the arm, and observe again")


def memory(state: PolicyState) -> dict[str, np.ndarray]:
    """Return a state's arrays f32 by name, rows first."""
    return {name: to_numpy(value, np.float32) for name, value in state.tensors.items()}


def decide(policy: ArmPolicy, requests: Sequence[Request]) -> list[dict[str, np.ndarray]]:
    """Decide several requests in one call; return values f32 [b, k, u] and the new memory of each.

    The results are copies: they stay valid after the next call of the policy.
    """
    first = requests[0].arrays
    arrays = {
        name: np.concatenate([r.arrays[name] for r in requests]) if len(requests) > 1 else value
        for name, value in first.items()
    }
    obs = Observation(
        images=arrays["images"], image_ok=arrays["image_ok"], proprio=arrays["proprio"],
        task=tuple(task for request in requests for task in request.task),
        time_s=arrays["time_s"],
    )  # fmt: skip
    state = PolicyState(tensors={name: arrays[name] for name in requests[0].memory})
    chunk, new = policy.act(obs, state, arrays["noise"], _prefix(arrays))
    return _split(chunk, new, [request.rows for request in requests])


def _prefix(arrays: dict[str, np.ndarray]) -> Prefix | None:
    for guided, names in ((False, PREFIX), (True, GUIDE)):
        if names[0] in arrays:
            return Prefix(values=arrays[names[0]], mask=arrays[names[1]], guided=guided)
    return None


def _split(
    chunk: ActionChunk, new: PolicyState, rows: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    whole = {"values": to_numpy(chunk.values, np.float32), **memory(new)}
    parts, begin = [], 0
    for count in rows:
        parts.append({name: value[begin : begin + count].copy() for name, value in whole.items()})
        begin += count
    return parts


def _is_text(text: str) -> bool:
    """Whether a text has bytes; half a character has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
