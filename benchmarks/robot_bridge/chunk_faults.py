"""Faults of a policy's chunks, by name and seeded; without ROS."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vla.contracts.specs import RobotSpec

PERIOD_S = 0.1
"""Periods of chunks and of targets."""
REORDERED = 4
"""Chunks that overtake one another."""
POINTS = 16
"""Targets of a chunk."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A chunk that a policy publishes, good or faulty."""

    names: tuple[str, ...]
    """Joints."""
    times_s: np.ndarray
    """f64 [k]."""
    positions: list[list[float]]
    """Targets; rows may differ in length."""
    age_s: float = 0.0
    """Age of its stamp."""


class Path:
    """A smooth path of a good policy: each joint swings around its first position.

    It keeps the last chunks.

    Args:
        robot: The arm.
        rng: Draws how far and how fast.
        begin: Pose f64 [u].
    """

    def __init__(self, robot: RobotSpec, rng: np.random.Generator, begin: np.ndarray) -> None:
        self.robot, self.begin = robot, begin
        low, high = np.array(robot.low), np.array(robot.high)
        self.reach = rng.uniform(-0.25, 0.25, len(begin)) * (high - low)
        self.low, self.high = low, high
        self.rate = rng.uniform(0.5, 3.0, len(begin))
        self.sent: deque[Chunk] = deque(maxlen=REORDERED)

    def at(self, time_s: float) -> np.ndarray:
        """Return the pose f64 [u] at a time."""
        pose = self.begin + self.reach * (1 - np.cos(self.rate * time_s)) / 2
        return np.clip(pose, self.low, self.high)

    def chunk(self, k: int) -> Chunk:
        """Return the chunk of the k-th step."""
        times = PERIOD_S * np.arange(POINTS)
        positions = [self.at(k * PERIOD_S + t).tolist() for t in times]
        chunk = Chunk(names=self.robot.names, times_s=times, positions=positions)
        self.sent.append(chunk)
        return chunk


Fault = Callable[[Chunk, np.random.Generator, Path], list[Chunk]]
"""Turns a good chunk into the chunks that are sent instead, in order."""


def _with(value: float) -> Fault:
    """Return a fault that puts a number somewhere."""

    def fault(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
        positions = [list(row) for row in chunk.positions]
        positions[int(rng.integers(POINTS))][int(rng.integers(len(chunk.names)))] = value
        return [replace(chunk, positions=positions)]

    return fault


def _aged(low_s: float, high_s: float) -> Fault:
    return lambda chunk, rng, path: [replace(chunk, age_s=float(rng.uniform(low_s, high_s)))]


def _names(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    wrong = (
        ("elbow_of_another", *chunk.names[1:]), chunk.names[:-1], (*chunk.names, chunk.names[0]),
        (),
    )  # fmt: skip
    return [replace(chunk, names=wrong[int(rng.integers(len(wrong)))])]


def _size(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    positions = [list(row) for row in chunk.positions]
    positions[int(rng.integers(POINTS))] = [0.0] * int(rng.choice([0, 1, 12]))
    return [replace(chunk, positions=positions)]


def _times(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    return [replace(chunk, times_s=chunk.times_s[::-1].copy())]


def _empty(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    return [replace(chunk, times_s=np.zeros(0), positions=[])]


def _wild(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    """Targets anywhere in the range, new ones at every step."""
    shape = (POINTS, len(chunk.names))
    return [replace(chunk, positions=rng.uniform(path.low, path.high, shape).tolist())]


def _beyond(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    """Targets beyond the range, but not by more than it."""
    spread = path.high - path.low
    shape = (POINTS, len(chunk.names))
    return [
        replace(chunk, positions=rng.uniform(path.low - spread, path.high + spread, shape).tolist())
    ]


def _edge(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    """From one end of the range to the other and back, with every target."""
    ends = np.where(rng.random((POINTS, len(chunk.names))) < 0.5, path.low, path.high)
    begin = np.array(chunk.positions[0])
    return [replace(chunk, positions=[begin.tolist(), *ends[1:].tolist()])]


def _burst(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    """Many at once, with past and future stamps, out of order."""
    return [
        replace(
            chunk, age_s=float(rng.uniform(-0.3, 0.3)), times_s=chunk.times_s * rng.uniform(0.1, 2)
        )
        for _ in range(10)
    ]


def _reordered(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    """The last few again, in another order, each with its true age."""
    aged = [replace(sent, age_s=PERIOD_S * i) for i, sent in enumerate(reversed(path.sent))]
    return [aged[i] for i in rng.permutation(len(aged))]


def _dropped(chunk: Chunk, rng: np.random.Generator, path: Path) -> list[Chunk]:
    return [] if rng.random() < 0.7 else [chunk]


STOPPING: dict[str, Fault] = {
    "not a number": _with(float("nan")), "infinite": _with(float("inf")),
    "old": _aged(0.6, 5.0), "ten times late": _aged(1.0, 1.0), "from the future": _aged(-5.0, -0.6),
    "other names": _names, "other size": _size, "times that do not increase": _times,
    "empty": _empty, "silence": lambda chunk, rng, path: [],
}  # fmt: skip
"""Faults that must bring the arm to rest."""
MOVING: dict[str, Fault] = {
    "wild": _wild,
    "beyond the range": _beyond,
    "from end to end": _edge,
    "burst": _burst,
    "reordered": _reordered,
    "dropped": _dropped,
}
"""Faults in which it may continue to move, inside the limits."""
