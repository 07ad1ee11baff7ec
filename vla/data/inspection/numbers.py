"""Detectors of what is wrong in states, actions, times and instructions; pictures are beside it.

Each takes `Numbers` and yields findings. A channel's range is from its 1st to its 99th percentile,
so that what is rare does not decide what is usual.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vla.contracts.specs import RobotSpec
from vla.data.info import DatasetInfo
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding, count, named

OUTLIER = 6.0
"""Robust z-score beyond which a value is one."""
NORMAL_MAD, NORMAL_RANGE = 1.4826, 4.653
"""Of a normal distribution: deviation per median deviation; range of 98 % per deviation."""
BEYOND = 0.01
"""Share of a joint's range by which a limit may be passed."""
STILL, MOVES = 1e-4, 0.1
"""Shares of a channel's range: below, it stands still; above, it moves."""
LONG_S, LONG_FRAMES = 1.0, 10
"""What lasts at least this long, both, is long."""
LATE_S = 0.3
"""How long an arm may take to begin to follow."""
STOCK_S = 1e-4
"""Stock LeRobot refuses a frame whose time is off by more."""
POINTS, NEAR = 32, 0.02
"""Episodes are compared at so many points, and alike if within this share of the ranges."""
FEW, BLOCK = 8, 4096
"""Numbers of an episode that are compared first, and episodes that are compared at once."""
LAGS = 15
"""Frames of lag that are tried, either way."""
SLOW_S = 0.5
"""A longer lag is told as a warning."""
FOLLOWS = 0.5
"""Correlation above which a state follows its action."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Every number of a data set."""

    info: DatasetInfo
    state: np.ndarray
    """f32 `n s`."""
    action: np.ndarray
    """f32 `n u`."""
    timestamp: np.ndarray
    """f64 `n`, seconds."""
    robot: RobotSpec | None
    """The arm, if it is known."""

    def rows(self, episode: int) -> slice:
        """Return the rows of an episode."""
        return slice(int(self.info.offsets[episode]), int(self.info.offsets[episode + 1]))

    def episodes(self, rows: np.ndarray) -> list[int]:
        """Return the episode of each row."""
        return (np.searchsorted(self.info.offsets, rows, side="right") - 1).tolist()

    def place(self, rows: np.ndarray) -> str:
        """Return "3 frames of episode 1" for rows."""
        return f"{count(len(rows), 'frame')} of {named(self.episodes(rows))}"

    @property
    def long(self) -> int:
        """Frames that are long."""
        return max(LONG_FRAMES, round(LONG_S * self.info.fps))

    @property
    def paired(self) -> bool:
        """Whether action channel i tells state channel i where to be."""
        same = self.info.state_names == self.info.action_names
        return same or (self.robot is not None and self.state.shape == self.action.shape)


def ranges(values: np.ndarray) -> np.ndarray:
    """Return the range of each channel, f64 `d`, without what is not finite."""
    low, high = np.nanquantile(np.where(np.isfinite(values), values, np.nan), (0.01, 0.99), axis=0)
    return np.nan_to_num(high - low).astype(np.float64)


def find(numbers: Numbers) -> list[Finding]:
    """Return what every detector finds."""
    detectors = (not_finite, off_grid, short, unnamed, duplicates, beyond, outliers, stuck, lag)
    return [finding for detect in detectors for finding in detect(numbers)]


def vectors(numbers: Numbers) -> tuple[tuple[str, np.ndarray, Sequence[str]], ...]:
    """Return name, values and channel names of state and action."""
    info = numbers.info
    return (
        ("state", numbers.state, info.state_names), ("action", numbers.action, info.action_names),
    )  # fmt: skip


def not_finite(numbers: Numbers) -> Iterator[Finding]:
    """Find NaN and infinity."""
    for what, values, names in vectors(numbers):
        for channel in np.flatnonzero(~np.isfinite(values).all(axis=0)):
            rows = np.flatnonzero(~np.isfinite(values[:, channel]))
            where = numbers.episodes(rows)
            frame = int(rows[0] - numbers.info.offsets[where[0]])
            yield Finding(
                severity=ERROR, kind="not finite", episodes=tuple(sorted(set(where))),
                sentence=f"{what} {names[channel]!r} is no number in "
                f"{numbers.place(rows)}, first in frame {frame} of episode {where[0]}: training "
                "refuses the set; mend or drop them",
            )  # fmt: skip


def off_grid(numbers: Numbers) -> Iterator[Finding]:
    """Find timestamps that are not frame / fps."""
    info = numbers.info
    frame = np.arange(info.num_frames) - np.repeat(info.offsets[:-1], info.lengths)
    off = np.abs(numbers.timestamp - frame / info.fps)
    off = np.where(np.isfinite(off), off, np.inf)
    # A float32 of many seconds has steps of its own.
    allowed = np.maximum(STOCK_S, 2 * np.spacing((frame / info.fps).astype(np.float32)))
    gaps, slight = off > 0.5 / info.fps, off > allowed
    for severity, rows in ((ERROR, gaps), (WARNING, slight & ~gaps)):
        at = np.flatnonzero(rows)
        if not len(at):
            continue
        where = numbers.episodes(at)
        what, advice = (
            ("over half a frame", "frames were lost or the rate is wrong; record anew or drop them")
            if severity == ERROR
            else (
                f"up to {off[at].max() * 1e3:.1f} ms",
                "stock LeRobot refuses such frames; write frame / fps in their place",
            )
        )
        yield Finding(
            severity=severity, kind="time", episodes=tuple(sorted(set(where))),
            sentence=f"timestamps of {numbers.place(at)} are off the grid "
            f"of {info.fps:g} Hz by {what}, first in frame {frame[at[0]]} of episode {where[0]}: "
            f"{advice}",
        )  # fmt: skip


def short(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes of one frame, and of a length unlike the others."""
    lengths = numbers.info.lengths
    one = np.flatnonzero(lengths == 1).tolist()
    if one:
        yield Finding(
            severity=ERROR, kind="one frame", episodes=tuple(one),
            sentence=f"{named(one)} of one frame: nothing happens in it; drop it",
        )  # fmt: skip
    z = robust_z(lengths[:, None].astype(float))[:, 0]
    odd = [e for e in np.flatnonzero(z > OUTLIER).tolist() if e not in one]
    if odd:
        yield Finding(
            severity=WARNING, kind="length", episodes=tuple(odd),
            sentence=f"{named(odd)} of unusual length ({lengths[odd].min()} to "
            f"{lengths[odd].max()} frames, the usual one has {int(np.median(lengths))}): see "
            "whether the recorder was stopped late or early",
        )  # fmt: skip


def unnamed(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes without an instruction."""
    without = [e for e, text in enumerate(numbers.info.tasks) if not (text or "").strip()]
    if without:
        yield Finding(
            severity=ERROR, kind="no instruction", episodes=tuple(without),
            sentence=f"{named(without)} without an instruction: a policy would learn to ignore "
            "what it is told; write one into meta/tasks.parquet",
        )  # fmt: skip


def duplicates(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes whose states and actions are those of another one, or nearly."""
    seen: dict[bytes, int] = {}
    same, shapes, alone = [], [], []
    values = np.concatenate([numbers.state, numbers.action], axis=1)
    scale = np.concatenate([ranges(numbers.state), ranges(numbers.action)])
    moving = scale > 0
    # Far from 0, float32 would be too coarse.
    centre = [np.median(v[np.isfinite(v)]) for v in values[:, moving].T]
    for e in range(numbers.info.num_episodes):
        rows = values[numbers.rows(e)]
        first = seen.setdefault(hashlib.blake2b(rows.tobytes(), digest_size=16).digest(), e)
        if first != e:
            same.append((first, e))
        elif len(rows) > 1 and moving.any():
            shape = (_resampled(rows[:, moving]) - centre) / scale[moving]
            shapes.append(shape.astype(np.float32).ravel())
            alone.append(e)
    if same:
        yield Finding(
            severity=ERROR, kind="duplicate", episodes=tuple(e for _, e in same),
            sentence=f"{named([e for _, e in same])} with the states and actions of an earlier one "
            f"(episode {same[0][1]} is episode {same[0][0]}): they count twice and leak from "
            "training to validation; drop them",
        )  # fmt: skip
    near = _near(np.array(shapes), alone) if len(shapes) > 1 else []
    if near:
        yield Finding(
            severity=WARNING, kind="near duplicate", episodes=tuple(e for _, e in near),
            sentence=f"{named([e for _, e in near])} within {NEAR:.0%} of an earlier one all along "
            f"(episode {near[0][1]} is like episode {near[0][0]}): see whether it was recorded "
            "twice; if so drop it",
        )  # fmt: skip


def _resampled(values: np.ndarray) -> np.ndarray:
    at = np.linspace(0, len(values) - 1, POINTS)
    return np.stack([np.interp(at, np.arange(len(values)), column) for column in values.T], axis=1)


def _near(shapes: np.ndarray, episodes: list[int]) -> list[tuple[int, int]]:
    """Return pairs of episodes alike at every point; only neighbours in the mean can be.

    Args:
        shapes: f32 `e p`.
        episodes: Number of each.
    """
    finite = np.flatnonzero(np.isfinite(shapes).all(axis=1))
    if len(finite) < 2:
        return []
    order = finite[np.argsort(shapes[finite].mean(axis=1), kind="stable")]
    shapes = shapes[order]
    mean = shapes.mean(axis=1)
    # Means are rounded too.
    ends = np.searchsorted(mean, mean + np.float32(1.01 * NEAR), side="right")
    # Of most pairs, a few numbers that differ much from episode to episode say enough.
    few = shapes[:, np.argsort(-shapes.std(axis=0), kind="stable")[:FEW]].T.copy()
    found: dict[int, int] = {}
    for place, end in enumerate(ends.tolist()):
        for first in range(place + 1, end, BLOCK):
            block = np.arange(first, min(first + BLOCK, end))
            for column in few:
                block = block[np.abs(column[block] - column[place]) < NEAR]
            alike = block[np.abs(shapes[block] - shapes[place]).max(axis=1, initial=0) < NEAR]
            for j in alike.tolist():
                pair = sorted((episodes[order[place]], episodes[order[j]]))
                found.setdefault(pair[1], pair[0])
    return sorted((first, second) for second, first in found.items())


def beyond(numbers: Numbers) -> Iterator[Finding]:
    """Find values beyond the limits of the robot."""
    if numbers.robot is None:
        return
    limits = {c.name: (c.low, c.high) for c in numbers.robot.channels}
    for what, values, names in vectors(numbers):
        for channel, name in enumerate(names):
            if name not in limits:
                continue
            low, high = limits[name]
            margin = BEYOND * (high - low)
            column = values[:, channel]
            outside = (column < low - margin) | (column > high + margin)
            rows = np.flatnonzero(outside & np.isfinite(column))
            if len(rows):
                where = numbers.episodes(rows)
                worst = column[rows[np.argmax(np.abs(column[rows] - (low + high) / 2))]]
                yield Finding(
                    severity=WARNING, kind="limits", episodes=tuple(sorted(set(where))),
                    sentence=f"{what} {name!r} passes the limits of {numbers.robot.name} ({low:g} "
                    f"to {high:g}) in {numbers.place(rows)}, up to {worst:g}: check "
                    "unit and calibration, or the robot's file",
                )  # fmt: skip


def robust_z(values: np.ndarray) -> np.ndarray:
    """Return how many deviations each value `n d` is from its channel's median, 0 if unknown.

    The deviation is the larger of what the median deviation and the range of 98 % of the values
    say of a normal distribution: a gripper is open or closed and rarely in between.
    """
    clean = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    distance = np.abs(clean - np.nanmedian(clean, axis=0))
    scale = np.maximum(NORMAL_MAD * np.nanmedian(distance, axis=0), ranges(values) / NORMAL_RANGE)
    return np.nan_to_num(np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0))


def outliers(numbers: Numbers) -> Iterator[Finding]:
    """Find values far from all others of their channel."""
    for what, values, names in vectors(numbers):
        z = robust_z(values)
        for channel in np.flatnonzero(z.max(axis=0) > OUTLIER):
            rows = np.flatnonzero(z[:, channel] > OUTLIER)
            worst = int(np.argmax(z[:, channel]))
            where = numbers.episodes(rows)
            episode = numbers.episodes(np.array([worst]))[0]
            yield Finding(
                severity=WARNING, kind="outlier", episodes=tuple(sorted(set(where))),
                sentence=f"{what} {names[channel]!r} is far from usual in "
                f"{numbers.place(rows)}, worst in frame {worst - numbers.info.offsets[episode]} of "
                f"episode {episode}: {values[worst, channel]:g}, {z[worst, channel]:.0f} robust "
                "deviations from the median; look at the episode, drop it if a sensor failed",
            )  # fmt: skip


def still_runs(values: np.ndarray, still: float) -> list[tuple[int, int]]:
    """Return (first, end) of the stretches of values `t` within `still` of their first one."""
    runs, first = [], 0
    for t in range(1, len(values) + 1):
        if t == len(values) or not abs(values[t] - values[first]) <= still:
            runs.append((first, t))
            first = t
    return runs


def stuck(numbers: Numbers) -> Iterator[Finding]:
    """Find joints that stand still for long while their action moves."""
    if not numbers.paired:
        return
    usual = np.maximum(ranges(numbers.action), ranges(numbers.state))
    late = max(3, round(LATE_S * numbers.info.fps))
    for channel, name in enumerate(numbers.info.state_names):
        found = []
        for e in range(numbers.info.num_episodes):
            rows = numbers.rows(e)
            state, action = numbers.state[rows, channel], numbers.action[rows, channel]
            for first, end in still_runs(state, STILL * usual[channel]):
                asked = action[first : end - late]
                if end - first >= numbers.long and np.ptp(asked) > MOVES * usual[channel] > 0:
                    found.append((e, first, end))
        if found:
            e, first, end = found[0]
            where = [e for e, _, _ in found]
            yield Finding(
                severity=ERROR, kind="stuck", episodes=tuple(sorted(set(where))),
                sentence=f"joint {name!r} stands still while its action moves in {named(where)}, "
                f"first in frames {first} to {end - 1} of episode {e}: its sensor or motor was "
                "dead; drop them",
            )  # fmt: skip


def lag(numbers: Numbers) -> Iterator[Finding]:
    """Find how many frames the state follows the action, and whether it comes before it."""
    if not numbers.paired:
        return
    if np.array_equal(numbers.state, numbers.action):
        yield Finding(
            severity=WARNING, kind="lag",
            sentence="every action is the state of the same frame: a policy would learn to stand "
            "still; record what the arm was told, or shift actions by a frame",
        )  # fmt: skip
        return
    frames, correlation = best_lag(numbers)
    if correlation < FOLLOWS:
        return
    seconds = frames / numbers.info.fps
    told = (
        f"the state follows the action by {count(frames, 'frame')} ({seconds:.2f} s, correlation "
        f"{correlation:.2f})"
    )
    if frames < 0:
        yield Finding(
            severity=WARNING, kind="lag",
            sentence=f"the state is {count(-frames, 'frame')} ({-seconds:.2f} s) ahead of the "
            "action: actions were stamped late; shift them, or record anew",
        )  # fmt: skip
    else:
        slow = seconds > SLOW_S
        yield Finding(
            severity=WARNING if slow else NOTE, kind="lag",
            sentence=told
            + (": check the clocks of arm and recorder" if slow else ": as an arm does"),
        )  # fmt: skip


def best_lag(numbers: Numbers) -> tuple[int, float]:
    """Return the lag in frames at which motion of state and action correlate most, and how much."""
    scale = np.maximum(ranges(numbers.action), 1e-12)
    state, action = (
        np.where(np.isfinite(v), v, 0.0) / scale for v in (numbers.state, numbers.action)
    )
    sums = np.zeros((2 * LAGS + 1, 3))
    for e in range(numbers.info.num_episodes):
        rows = numbers.rows(e)
        moved, told = np.diff(state[rows], axis=0), np.diff(action[rows], axis=0)
        for place, k in enumerate(range(-LAGS, LAGS + 1)):
            a, b = (told[: len(told) - k], moved[k:]) if k >= 0 else (told[-k:], moved[:k])
            sums[place] += (a * b).sum(), (a * a).sum(), (b * b).sum()
    both = np.sqrt(sums[:, 1] * sums[:, 2])
    found = np.divide(sums[:, 0], both, out=np.zeros(len(both)), where=both > 0)
    best = int(np.argmax(found))
    return best - LAGS, float(found[best])
