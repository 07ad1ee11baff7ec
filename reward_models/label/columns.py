"""From scored frames to columns of every frame and figures of every episode; plain arrays.

Between scored frames everything is interpolated linearly in time; trend and success are those of
the scored frame before. Where a neighbour was abstained from, so is the frame.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_models import shaping
from reward_models.label.source import Source
from reward_models.metrics.ranks import spearman

Scored = Mapping[str, np.ndarray]
"""What `score.columns_of` returns."""
UNSURE = (0.25, 0.75)
SILENT = 0.2
CONFLICT = 0.5


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """How rewards and flags follow from what was scored; scoring does not depend on it."""

    reward: shaping.Kind
    gamma: float
    """Per scored step."""
    done_threshold: float
    stride_s: float
    horizon_s: float
    smooth: bool

    def gamma_per_frame(self, fps: float) -> float:
        """Return the discount per frame: over the time between scored frames it is `gamma`."""
        return self.gamma ** (1.0 / max(1.0, self.stride_s * fps))


FRAME_COLUMNS = {
    "progress": "float32",
    "progress.delta": "float32",
    "progress.trend": "int8",
    "progress.done_prob": "float32",
    "progress.match": "float32",
    "progress.confidence": "float32",
    "progress.scored": "bool",
    "next.reward": "float32",
    "next.done": "bool",
    "next.success": "bool",
}
EPISODE_COLUMNS = {
    "labels/success_prob": "float32",
    "labels/voc": "float32",
    "labels/negative_rate": "float32",
    "labels/max_regression": "float32",
    "labels/stagnation_ratio": "float32",
    "labels/first_done_frame": "int64",
    "labels/review": "bool",
}
_INTERPOLATED = ("progress", "delta", "done_prob", "match", "confidence")


def frame_columns(
    source: Source, scored: Mapping[int, Scored], how: Derivation
) -> dict[str, np.ndarray]:
    """Return the new columns [n] of every frame, in order of episode and time.

    Frames of episodes that were not scored have NaN, confidence 0 and no reward.
    """
    count = source.info.num_frames
    found = {name: np.zeros(count, dtype) for name, dtype in FRAME_COLUMNS.items()}
    for name in ("progress", "progress.delta", "progress.done_prob", "progress.match"):
        found[name][:] = np.nan
    if how.smooth:
        found["progress.smoothed"] = np.full(count, np.nan, np.float32)
    found["next.done"][source.info.offsets[1:] - 1] = True
    for episode, columns in scored.items():
        begin = int(source.info.offsets[episode])
        for number, segment in enumerate(source.segments[episode]):
            mine = columns["segment"] == number
            own = {name: values[mine] for name, values in columns.items()}
            rows = slice(begin + segment.first, begin + segment.first + segment.frames)
            own["frame"] = own["frame"] - segment.first
            for name, values in _segment(own, segment.frames, source.info.fps, how).items():
                found[name][rows] = values
    return found


def _segment(
    own: dict[str, np.ndarray], frames: int, fps: float, how: Derivation
) -> dict[str, np.ndarray]:
    """Return the columns of one segment of `frames` frames."""
    dense = {name: between(own["frame"], own[name], frames) for name in _INTERPOLATED}
    scored = np.zeros(frames, np.bool_)
    scored[own["frame"]] = True
    before = np.searchsorted(own["frame"], np.arange(frames), side="right") - 1
    spoke = ~np.isnan(own["progress"])
    done = ((own["done_prob"] >= how.done_threshold) & spoke)[before]
    found = {
        "progress": dense["progress"],
        "progress.delta": dense["delta"],
        "progress.trend": own["trend"][before],
        "progress.done_prob": dense["done_prob"],
        "progress.match": dense["match"],
        "progress.confidence": dense["confidence"],
        "progress.scored": scored,
        "next.reward": reward(dense["progress"], dense["delta"], bool(done[-1]), fps, how),
        # What an action leads to is seen one frame later, LeRobot's meaning of "next".
        "next.success": np.append(done[1:], done[-1]),
    }
    if how.smooth:
        smooth = smoothed(own["frame"] / fps, own["progress"], how.horizon_s / 2)
        found["progress.smoothed"] = between(own["frame"], smooth, frames)
    return found


def between(at: np.ndarray, value: np.ndarray, frames: int) -> np.ndarray:
    """Return values f32 [frames] of a column known at some frames, the last one among them."""
    dense = np.interp(np.arange(frames), at, value)
    dense[at] = value  # a NaN spoils what lies beside it, not what was measured
    return dense.astype(np.float32)


def reward(
    progress: np.ndarray, delta: np.ndarray, done: bool, fps: float, how: Derivation
) -> np.ndarray:
    """Return the reward f32 [t] of going from each frame to the next.

    The discount per frame is such that over the time between scored frames it is `gamma`, and a
    delta is spread over its horizon: rewards at 10 and at 50 frames/s lead to the same return. The
    last frame ends the episode (`next.done`), whyever it ended: no potential is left there, so that
    nobody is paid for having come near, and reward 1 comes on top where the task is done. While the
    critic abstains there is no reward; what changed meanwhile is settled when it speaks again.
    """
    if how.reward == "delta":
        share = 1.0 / max(1.0, fps * how.horizon_s)
        return (share * shaping.raw_delta(np.append(delta[1:], np.nan))).astype(np.float32)
    before, gap = shaping.held(progress)
    after = np.append(before[1:], before[-1])
    ended = np.zeros(len(progress), np.bool_)
    ended[-1] = True
    gamma = how.gamma_per_frame(fps)
    found = shaping.shaped(before, after, gamma=gamma, ended=ended, done_bonus=float(done))
    silent = np.append(gap[1:], False)
    return np.where(silent, 0.0, found).astype(np.float32)


def smoothed(time_s: np.ndarray, value: np.ndarray, sigma_s: float) -> np.ndarray:
    """Return values averaged over past and future with a Gaussian; NaN stays NaN and adds nothing.

    Args:
        time_s: f64 [k].
        value: f32 [k].
        sigma_s: Its standard deviation.
    """
    known = ~np.isnan(value)
    result = np.full(len(value), np.nan, np.float32)
    for i in np.flatnonzero(known):
        near = known & (np.abs(time_s - time_s[i]) <= 3 * sigma_s)
        away = (time_s[near] - time_s[i]) / max(sigma_s, 1e-9)
        weight = np.exp(-0.5 * away**2)
        result[i] = weight @ value[near] / weight.sum()
    return result


def episode_figures(
    source: Source, episode: int, columns: Scored, how: Derivation
) -> dict[str, Any]:
    """Return the figures of one scored episode, by the names of `EPISODE_COLUMNS`.

    Figures are taken over scored frames; those of several segments are averaged by length.
    """
    weight, parts = [], []
    for number in range(len(source.segments[episode])):
        mine = columns["segment"] == number
        weight.append(int(mine.sum()))
        parts.append(_curve_figures({name: values[mine] for name, values in columns.items()}))
    found = {name: _mean([p[name] for p in parts], weight) for name in parts[0]}
    done = columns["done_prob"] >= how.done_threshold
    success = float(columns["done_prob"][-1])
    return {
        **found,
        "labels/success_prob": success,
        "labels/first_done_frame": int(columns["frame"][np.argmax(done)]) if done.any() else -1,
        "labels/review": _doubtful(columns, success),
    }


def _curve_figures(own: Scored) -> dict[str, float]:
    value = own["progress"][~np.isnan(own["progress"])].astype(np.float64)
    delta = own["delta"][1:][~np.isnan(own["delta"][1:])]
    falls = np.maximum.accumulate(value) - value
    return {
        "labels/voc": spearman(value, np.arange(len(value))) if len(value) > 1 else math.nan,
        "labels/negative_rate": float(np.mean(delta < 0)) if len(delta) else math.nan,
        "labels/max_regression": float(falls.max()) if len(falls) else math.nan,
        "labels/stagnation_ratio": float(np.mean(own["trend"] == 0)),
    }


def _mean(values: list[float], weight: list[int]) -> float:
    known = [(v, w) for v, w in zip(values, weight, strict=True) if not math.isnan(v)]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else math.nan


def _doubtful(columns: Scored, success: float) -> bool:
    """Say whether a person should look: unsure, silent, at odds with itself, or out of place."""
    known = columns["progress"][~np.isnan(columns["progress"])]
    silent = 1 - len(known) / len(columns["progress"])
    conflict = abs(known[-1] - success) if len(known) else 1.0
    return bool(
        UNSURE[0] < success < UNSURE[1]
        or silent > SILENT
        or conflict > CONFLICT
        or np.mean(columns["match"]) < 0.5
    )


def no_figures() -> dict[str, Any]:
    """Return the figures of an episode that was not scored."""
    blank: dict[str, Any] = dict.fromkeys(EPISODE_COLUMNS, math.nan)
    return {**blank, "labels/first_done_frame": -1, "labels/review": False}
