"""Detectors of problems in states, actions, timestamps and instructions.

Each takes `Numbers` and yields findings. The range of a channel is that from its 1st to its 99th
percentile, to be robust against outliers.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vla.contracts.specs import RobotSpec
from vla.data.info import DatasetInfo
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding, count, named

OUTLIER = 6.0
"""Robust z-score above which a value is an outlier."""
NORMAL_MAD, NORMAL_RANGE = 1.4826, 4.653
"""Normal distribution: standard deviations per median deviation; range of 98 % per deviation."""
BEYOND = 0.01
"""Tolerance of joint limits, relative to their range."""
STILL, MOVES = 1e-4, 0.1
"""Relative to a channel's range: below the first it is static, above the second it moves."""
LONG_S, LONG_FRAMES = 1.0, 10
"""Minimum duration of a fault: the larger of both."""
LATE_S = 0.3
"""Time that an arm may take to start following."""
STOCK_S = 1e-4
"""Largest timestamp error that LeRobot accepts."""
POINTS, NEAR = 32, 0.02
"""Points at which episodes are compared, and largest relative distance of near duplicates."""
FEW, BLOCK = 8, 4096
"""Numbers per episode that are compared first, and episodes per block."""
LAGS = 15
"""Largest lag in frames that is tried, in both directions."""
SLOW_S = 0.5
"""A longer lag is a warning."""
FOLLOWS = 0.5
"""Correlation above which the state follows the action."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """All numbers of a data set."""

    info: DatasetInfo
    state: np.ndarray
    """f32 `n s`."""
    action: np.ndarray
    """f32 `n u`."""
    timestamp: np.ndarray
    """f64 `n`, seconds."""
    scalars: Mapping[str, np.ndarray]
    """Further columns of one number, f32 `n`, by name."""
    robot: RobotSpec | None
    """The robot, if it is known."""

    def rows(self, episode: int) -> slice:
        """Return the rows of an episode."""
        return slice(int(self.info.offsets[episode]), int(self.info.offsets[episode + 1]))

    def episodes(self, rows: np.ndarray) -> list[int]:
        """Return the episode of each row."""
        return (np.searchsorted(self.info.offsets, rows, side="right") - 1).tolist()

    def place(self, rows: np.ndarray) -> str:
        """Return text such as "3 frames of episode 1" for rows."""
        return f"{count(len(rows), 'frame')} of {named(self.episodes(rows))}"

    @property
    def long(self) -> int:
        """Minimum duration of a fault in frames."""
        return max(LONG_FRAMES, round(LONG_S * self.info.fps))

    @property
    def paired(self) -> bool:
        """Whether action channel i is the target of state channel i."""
        same = self.info.state_names == self.info.action_names
        return same or (self.robot is not None and self.state.shape == self.action.shape)


def ranges(values: np.ndarray) -> np.ndarray:
    """Return the range of the finite values of each channel, f64 `d`."""
    low, high = np.nanquantile(np.where(np.isfinite(values), values, np.nan), (0.01, 0.99), axis=0)
    return np.nan_to_num(high - low).astype(np.float64)


def find(numbers: Numbers) -> list[Finding]:
    """Return the findings of all detectors."""
    detectors = (
        not_finite,
        off_grid,
        short,
        unnamed,
        duplicates,
        beyond,
        outliers,
        static_joints,
        lag,
    )
    return [finding for detect in detectors for finding in detect(numbers)]


def vectors(numbers: Numbers) -> tuple[tuple[str, np.ndarray, Sequence[str]], ...]:
    """Return name, values and channel names of state and action."""
    info = numbers.info
    return (
        ("state", numbers.state, info.state_names), ("action", numbers.action, info.action_names),
    )  # fmt: skip


def not_finite(numbers: Numbers) -> Iterator[Finding]:
    """Find NaN and infinity."""
    scalars = [("column", values[:, None], (name,)) for name, values in numbers.scalars.items()]
    for what, values, names in (*vectors(numbers), *scalars):
        for channel in np.flatnonzero(~np.isfinite(values).all(axis=0)):
            rows = np.flatnonzero(~np.isfinite(values[:, channel]))
            where = numbers.episodes(rows)
            frame = int(rows[0] - numbers.info.offsets[where[0]])
            yield Finding(
                severity=ERROR, kind="not finite", episodes=tuple(sorted(set(where))),
                message=f"{what} {names[channel]!r} is no number in "
                f"{numbers.place(rows)}, first in frame {frame} of episode {where[0]}: training "
                "refuses the data set; repair or drop them",
            )  # fmt: skip


def off_grid(numbers: Numbers) -> Iterator[Finding]:
    """Find timestamps that are not frame / fps."""
    info = numbers.info
    frame = np.arange(info.num_frames) - np.repeat(info.offsets[:-1], info.lengths)
    off = np.abs(numbers.timestamp - frame / info.fps)
    off = np.where(np.isfinite(off), off, np.inf)
    # float32 has a coarse resolution at many seconds.
    allowed = np.maximum(STOCK_S, 2 * np.spacing((frame / info.fps).astype(np.float32)))
    gaps, slight = off > 0.5 / info.fps, off > allowed
    for severity, rows in ((ERROR, gaps), (WARNING, slight & ~gaps)):
        at = np.flatnonzero(rows)
        if not len(at):
            continue
        where = numbers.episodes(at)
        what = "over half a frame"
        advice = "frames were lost or the rate is wrong; record again or drop them"
        if severity == WARNING:
            what = f"up to {off[at].max() * 1e3:.1f} ms"
            advice = "stock LeRobot refuses such frames; write frame / fps instead"
        yield Finding(
            severity=severity, kind="time", episodes=tuple(sorted(set(where))),
            message=f"timestamps of {numbers.place(at)} are off the grid "
            f"of {info.fps:g} Hz by {what}, first in frame {frame[at[0]]} of episode {where[0]}: "
            f"{advice}",
        )  # fmt: skip


def short(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes of one frame, and of a length unlike the others."""
    lengths = numbers.info.lengths
    single = np.flatnonzero(lengths == 1).tolist()
    if single:
        yield Finding(
            severity=ERROR, kind="one frame", episodes=tuple(single),
            message=f"{named(single)} of one frame: nothing happens in it; drop it",
        )  # fmt: skip
    z = robust_z(lengths[:, None].astype(float))[:, 0]
    odd = [e for e in np.flatnonzero(z > OUTLIER).tolist() if e not in single]
    if odd:
        yield Finding(
            severity=WARNING, kind="length", episodes=tuple(odd),
            message=f"{named(odd)} of unusual length ({lengths[odd].min()} to "
            f"{lengths[odd].max()} frames, the median is {int(np.median(lengths))}): see "
            "whether the recorder was stopped late or early",
        )  # fmt: skip


def unnamed(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes without an instruction."""
    without = [e for e, text in enumerate(numbers.info.tasks) if not (text or "").strip()]
    if without:
        yield Finding(
            severity=ERROR, kind="no instruction", episodes=tuple(without),
            message=f"{named(without)} without an instruction: a policy would learn to ignore "
            "instructions; write one into meta/tasks.parquet",
        )  # fmt: skip


def duplicates(numbers: Numbers) -> Iterator[Finding]:
    """Find episodes whose states and actions are those of another one, or nearly."""
    hashes: dict[bytes, int] = {}
    same, shapes, alone = [], [], []
    values = np.concatenate([numbers.state, numbers.action], axis=1)
    scale = np.concatenate([ranges(numbers.state), ranges(numbers.action)])
    moving = scale > 0
    # Center the values: far from 0, float32 is too coarse.
    centre = [np.median(v[np.isfinite(v)]) for v in values[:, moving].T]
    for e in range(numbers.info.num_episodes):
        rows = values[numbers.rows(e)]
        first = hashes.setdefault(hashlib.blake2b(rows.tobytes(), digest_size=16).digest(), e)
        if first != e:
            same.append((first, e))
        elif len(rows) > 1 and moving.any():
            shape = (_resampled(rows[:, moving]) - centre) / scale[moving]
            shapes.append(shape.astype(np.float32).ravel())
            alone.append(e)
    if same:
        yield Finding(
            severity=ERROR, kind="duplicate", episodes=tuple(e for _, e in same),
            message=f"{named([e for _, e in same])} with the states and actions of an earlier one "
            f"(episode {same[0][1]} is episode {same[0][0]}): they count twice and leak from "
            "training to validation; drop them",
        )  # fmt: skip
    near = _near(np.array(shapes), alone) if len(shapes) > 1 else []
    if near:
        yield Finding(
            severity=WARNING, kind="near duplicate", episodes=tuple(e for _, e in near),
            message=f"{named([e for _, e in near])} within {NEAR:.0%} of an earlier one all along "
            f"(episode {near[0][1]} is like episode {near[0][0]}): see whether it was recorded "
            "twice; if so drop it",
        )  # fmt: skip


def _resampled(values: np.ndarray) -> np.ndarray:
    at = np.linspace(0, len(values) - 1, POINTS)
    return np.stack([np.interp(at, np.arange(len(values)), column) for column in values.T], axis=1)


def _near(shapes: np.ndarray, episodes: list[int]) -> list[tuple[int, int]]:
    """Return pairs of episodes with shapes f32 `e p` alike at every point: only neighbours in the
    mean can be.
    """
    finite = np.flatnonzero(np.isfinite(shapes).all(axis=1))
    if len(finite) < 2:
        return []
    order = finite[np.argsort(shapes[finite].mean(axis=1), kind="stable")]
    shapes = shapes[order]
    mean = shapes.mean(axis=1)
    # Allows for rounding of the means.
    ends = np.searchsorted(mean, mean + np.float32(1.01 * NEAR), side="right")
    # A few numbers that vary most between episodes rule out most pairs.
    few = shapes[:, np.argsort(-shapes.std(axis=0), kind="stable")[:FEW]].T.copy()
    pairs: dict[int, int] = {}
    for place, end in enumerate(ends.tolist()):
        for first in range(place + 1, end, BLOCK):
            block = np.arange(first, min(first + BLOCK, end))
            for column in few:
                block = block[np.abs(column[block] - column[place]) < NEAR]
            alike = block[np.abs(shapes[block] - shapes[place]).max(axis=1, initial=0) < NEAR]
            for j in alike.tolist():
                pair = sorted((episodes[order[place]], episodes[order[j]]))
                pairs.setdefault(pair[1], pair[0])
    return sorted((first, second) for second, first in pairs.items())


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
                    message=f"{what} {name!r} passes the limits of {numbers.robot.name} ({low:g} "
                    f"to {high:g}) in {numbers.place(rows)}, up to {worst:g}: check "
                    "unit and calibration, or the robot's file",
                )  # fmt: skip


def robust_z(values: np.ndarray) -> np.ndarray:
    """Return the robust z-score of each value `n d`, 0 if unknown.

    The standard deviation is the larger of the estimates from the median deviation and from the
    range of 98 % of the values, because a gripper is open or closed and rarely in between.
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
                message=f"{what} {names[channel]!r} is an outlier in "
                f"{numbers.place(rows)}, worst in frame {worst - numbers.info.offsets[episode]} of "
                f"episode {episode}: {values[worst, channel]:g}, {z[worst, channel]:.0f} robust "
                "deviations from the median; look at the episode, drop it if a sensor failed",
            )  # fmt: skip


def still_runs(values: np.ndarray, still: float) -> list[tuple[int, int]]:
    """Return (first, end) of the runs of values `t` within `still` of their first value."""
    runs, first = [], 0
    for t in range(1, len(values) + 1):
        if t == len(values) or not abs(values[t] - values[first]) <= still:
            runs.append((first, t))
            first = t
    return runs


def static_joints(numbers: Numbers) -> Iterator[Finding]:
    """Find joints that are static while their action moves."""
    if not numbers.paired:
        return
    scale = np.maximum(ranges(numbers.action), ranges(numbers.state))
    late = max(3, round(LATE_S * numbers.info.fps))
    for channel, name in enumerate(numbers.info.state_names):
        runs = []
        for e in range(numbers.info.num_episodes):
            rows = numbers.rows(e)
            state, action = numbers.state[rows, channel], numbers.action[rows, channel]
            for first, end in still_runs(state, STILL * scale[channel]):
                target = action[first : end - late]
                if end - first >= numbers.long and np.ptp(target) > MOVES * scale[channel] > 0:
                    runs.append((e, first, end))
        if runs:
            e, first, end = runs[0]
            where = [e for e, _, _ in runs]
            yield Finding(
                severity=ERROR, kind="stuck", episodes=tuple(sorted(set(where))),
                message=f"joint {name!r} stands still while its action moves in {named(where)}, "
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
            message="every action is the state of the same frame: a policy would learn to stand "
            "still; record the commands of the arm, or shift actions by a frame",
        )  # fmt: skip
        return
    frames, correlation = best_lag(numbers)
    if correlation < FOLLOWS:
        return
    seconds = frames / numbers.info.fps
    if frames < 0:
        yield Finding(
            severity=WARNING, kind="lag",
            message=f"the state is {count(-frames, 'frame')} ({-seconds:.2f} s) ahead of the "
            "action: actions were stamped late; shift them, or record again",
        )  # fmt: skip
    else:
        slow = seconds > SLOW_S
        advice = "check the clocks of arm and recorder" if slow else "as an arm does"
        yield Finding(
            severity=WARNING if slow else NOTE, kind="lag",
            message=f"the state follows the action by {count(frames, 'frame')} ({seconds:.2f} s, "
            f"correlation {correlation:.2f}): {advice}",
        )  # fmt: skip


def best_lag(numbers: Numbers) -> tuple[int, float]:
    """Return the lag in frames with the largest correlation of state and action, and that value."""
    scale = np.maximum(ranges(numbers.action), 1e-12)
    state, action = (
        np.where(np.isfinite(v), v, 0.0) / scale for v in (numbers.state, numbers.action)
    )
    sums = np.zeros((2 * LAGS + 1, 3))
    for e in range(numbers.info.num_episodes):
        rows = numbers.rows(e)
        moved, commanded = np.diff(state[rows], axis=0), np.diff(action[rows], axis=0)
        for place, k in enumerate(range(-LAGS, LAGS + 1)):
            if abs(k) >= len(moved):
                continue  # longer than the episode
            a, b = commanded[-k:], moved[:k]
            if k >= 0:
                a, b = commanded[: len(commanded) - k], moved[k:]
            sums[place] += (a * b).sum(), (a * a).sum(), (b * b).sum()
    both = np.sqrt(sums[:, 1] * sums[:, 2])
    correlation = np.divide(sums[:, 0], both, out=np.zeros(len(both)), where=both > 0)
    best = int(np.argmax(correlation))
    return best - LAGS, float(correlation[best])
