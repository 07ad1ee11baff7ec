"""Random chunks and joint states, good and bad, as they would reach `safety_node`."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from robot_bridge.motion.limits import Limits

JOINTS = (
    "good", "held", "partial", "reordered", "frozen", "late", "future", "damaged", "silent",
    "mixed",
)  # fmt: skip
"""What becomes of joint states. `held` and `frozen` are good ones here: the caller holds the arm,
and repeats the last message with its stamp. `mixed` is another one at every message."""
STEP_S = 0.1
"""Time between two targets."""
LATE_S = 0.4
"""Largest age of joint states, and how far they are in the future at most."""


class Chunk(NamedTuple):
    """A chunk, k targets."""

    names: list[str]
    times_s: list[float]
    """From its stamp on."""
    positions: list[list[float]]
    age_s: float


class Draft(NamedTuple):
    """What a kind of chunk starts from: a ramp f64 [k, u], with times f64 [k]."""

    rng: np.random.Generator
    limits: Limits
    names: list[str]
    times_s: np.ndarray
    positions: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Range f64 [u] of each joint."""
        return self.limits.high - self.limits.low

    def uniform(self, size: float | np.ndarray) -> np.ndarray:
        """Return numbers f64 [k, u] up to a size."""
        return self.rng.uniform(-1, 1, self.positions.shape) * size


def chunk(
    rng: np.random.Generator, limits: Limits, base: np.ndarray,
    before: tuple[np.ndarray, np.ndarray] | None,
) -> Chunk:  # fmt: skip
    """Return a chunk of a random kind.

    Args:
        rng: Source of randomness.
        limits: Limits of the joints.
        base: Pose f64 [u] near which a good one begins.
        before: Times from now, f64 [k], and targets f64 [k, u] of the last chunk.
    """
    count = int(rng.integers(1, 9))
    times_s = STEP_S * np.arange(count) + rng.choice([0.0, 0.0, 0.0, -0.3, 0.2])
    way = rng.uniform(-1, 1, len(base)) * rng.choice([0.1, 0.5, 1.0, 1.5]) * limits.velocity
    positions = base + STEP_S * np.arange(count)[:, None] * way
    age_s = float(rng.uniform(0.0, STEP_S))
    if rng.random() < 0.1:
        age_s = float(rng.choice([-0.45, 0.45, -0.6, 0.7, 1e9, -1e9]))
    kind = int(rng.choice(len(KINDS), p=SHARES))
    draft = Draft(rng, limits, list(limits.names), times_s, positions)
    if kind == 0 and before is not None:  # the rest of the same decision
        later = max(int(np.searchsorted(before[0], 0.0)) - 1, 0)
        draft = draft._replace(times_s=before[0][later:] + age_s, positions=before[1][later:])
    rows: list[list[float]] | None = None
    names, times_s, positions = KINDS[kind][1](draft)
    rows = positions.tolist()
    if rng.random() < 0.02:  # of other sizes
        rows[:1] = [[0.0] * int(rng.integers(0, 20))]
    return Chunk(names, times_s.tolist(), rows, age_s)


Made = tuple[list[str], np.ndarray, np.ndarray]
"""Names, times f64 [k], positions f64 [k, u]."""


def _good(draft: Draft) -> Made:
    return draft.names, draft.times_s, draft.positions


def _reordered(draft: Draft) -> Made:
    order = draft.rng.permutation(len(draft.names))
    return [draft.names[i] for i in order], draft.times_s, draft.positions[:, order]


def _wild(draft: Draft) -> Made:
    return draft.names, draft.times_s, draft.positions[0] + draft.uniform(0.55 * draft.limits.unit)


def _edges(draft: Draft) -> Made:
    low, high = draft.limits.low, draft.limits.high
    ends = np.where(draft.uniform(1.0) < 0, low, high)
    return draft.names, draft.times_s, np.concatenate([draft.positions[:1], ends[1:]])


def _beyond(draft: Draft) -> Made:
    beyond = draft.positions + draft.uniform(1.5 * draft.spread)
    return draft.names, draft.times_s, np.concatenate([draft.positions[:1], beyond[1:]])


def _far(draft: Draft) -> Made:
    return draft.names, draft.times_s, draft.positions + draft.rng.choice([1e3, -1e6, 1e308])


def _not_finite(draft: Draft) -> Made:
    positions = draft.positions.copy()
    odd = draft.rng.choice([np.nan, np.inf, -np.inf])
    positions[tuple(draft.rng.integers(size) for size in positions.shape)] = odd
    return draft.names, draft.times_s, positions


def _dense(draft: Draft) -> Made:
    """Targets down to a nanosecond apart."""
    apart = 10.0 ** draft.rng.uniform(-9, 0, len(draft.times_s))
    return draft.names, draft.times_s[0] + np.cumsum(apart), draft.positions


def _times(draft: Draft) -> Made:
    odd = draft.rng.choice([0.0, np.nan, 1e300], len(draft.times_s))
    return draft.names, odd + draft.rng.permutation(draft.times_s), draft.positions


def _names(draft: Draft) -> Made:
    names = draft.names
    wrong: list[list[str]] = [names[1:], [*names, "other"], [names[0], *names[:-1]], []]
    return wrong[int(draft.rng.integers(len(wrong)))], draft.times_s, draft.positions


def _empty(draft: Draft) -> Made:
    return draft.names, draft.times_s[:0], draft.positions[:0]


KINDS: list[tuple[int, Callable[[Draft], Made]]] = [
    (5, _good), (10, _good), (1, _reordered), (4, _wild), (2, _edges), (1, _beyond), (1, _far),
    (1, _not_finite), (1, _dense), (1, _times), (1, _names), (1, _empty),
]  # fmt: skip
"""How frequent each kind of chunk is; the first goes on with the last chunk."""
SHARES = np.array([count for count, _ in KINDS]) / sum(count for count, _ in KINDS)


class Measurement(NamedTuple):
    """A message of joint states."""

    age_s: float
    names: Sequence[str]
    positions: list[float]


def joint_states(
    rng: np.random.Generator, kind: str, names: tuple[str, ...], pose: np.ndarray
) -> Iterator[Measurement]:
    """Yield what is sent of a pose f64 [u], one of `JOINTS`."""
    age_s, count = float(rng.uniform(0.0, 0.005)), len(names)
    if kind == "mixed":
        kind = str(rng.choice(JOINTS[:-1]))
    if kind in ("good", "held", "frozen"):
        yield Measurement(age_s, names, pose.tolist())
    elif kind in ("late", "future"):
        off_s = float(rng.uniform(0.0, LATE_S))
        yield Measurement(off_s if kind == "late" else -off_s, names, pose.tolist())
    elif kind in ("partial", "reordered"):
        order = rng.permutation(count)
        cut = int(rng.integers(0, count)) if kind == "partial" else count
        some, rest = order[:cut], order[cut:]
        yield Measurement(age_s, ["other", *(names[i] for i in some)], [9.0, *pose[some].tolist()])
        if len(rest) and rng.random() < 0.8:
            yield Measurement(age_s, [names[i] for i in rest], pose[rest].tolist())
    elif kind == "damaged":
        values = pose.tolist()
        odd = values.copy()
        odd[int(rng.integers(count))] = float(rng.choice([np.nan, np.inf, 1e300]))
        wrong: list[tuple[Sequence[str], list[float]]] = [
            (names, odd), (names, values[1:]), ((), []), (("other",), [1.0]),
            ((names[0], *names[:-1]), values),
        ]  # fmt: skip
        yield Measurement(age_s, *wrong[int(rng.integers(len(wrong)))])
