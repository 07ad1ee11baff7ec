"""From scored frames to columns of every frame and metrics of every episode; plain arrays.

Between scored frames everything is interpolated linearly in time; trend and success are those of
the scored frame before. A frame next to an abstained one is abstained, too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_models.core import shaping
from reward_models.label.source import Source
from reward_models.label_report import read
from reward_models.label_report.doubt import MAX_ABSTAINED, MAX_CONFLICT, UNDECIDED
from reward_models.metrics.ranks import spearman

ScoredColumns = Mapping[str, np.ndarray]
"""What `score.columns_of` returns."""


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """How rewards and flags follow from the scores; scoring does not depend on it."""

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
    **read.FRAME_COLUMNS,
    "next.reward": np.float32,
    "next.done": np.bool_,
    "next.success": np.bool_,
}
EPISODE_COLUMNS = {f"labels/{name}": kind for name, kind in read.EPISODE_COLUMNS.items()}
_INTERPOLATED = ("progress", "delta", "done_prob", "match", "confidence")


def frame_columns(
    source: Source, scored: Mapping[int, ScoredColumns], derivation: Derivation
) -> dict[str, np.ndarray]:
    """Return the new columns [n] of every frame, in order of episode and time.

    Frames of episodes that were not scored have NaN, confidence 0 and no reward.
    """
    count = source.info.num_frames
    columns: dict[str, np.ndarray] = {n: np.zeros(count, t) for n, t in FRAME_COLUMNS.items()}
    for name in ("progress", "progress.delta", "progress.done_prob", "progress.match"):
        columns[name][:] = np.nan
    if derivation.smooth:
        columns["progress.smoothed"] = np.full(count, np.nan, np.float32)
    columns["next.done"][source.info.offsets[1:] - 1] = True
    for episode, scores in scored.items():
        begin = int(source.info.offsets[episode])
        for number, segment in enumerate(source.segments[episode]):
            part = _select(scores, scores["segment"] == number)
            part["frame"] = part["frame"] - segment.first
            rows = slice(begin + segment.first, begin + segment.first + segment.frames)
            dense = _segment(part, segment.frames, source.info.fps, derivation)
            for name, values in dense.items():
                columns[name][rows] = values
    return columns


def _select(columns: ScoredColumns, rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[rows] for name, values in columns.items()}


def _segment(
    scores: dict[str, np.ndarray], frames: int, fps: float, derivation: Derivation
) -> dict[str, np.ndarray]:
    """Return the columns of one segment of `frames` frames."""
    dense = {name: interpolate(scores["frame"], scores[name], frames) for name in _INTERPOLATED}
    scored = np.zeros(frames, np.bool_)
    scored[scores["frame"]] = True
    before = np.searchsorted(scores["frame"], np.arange(frames), side="right") - 1
    valid = ~np.isnan(scores["progress"])
    done = ((scores["done_prob"] >= derivation.done_threshold) & valid)[before]
    columns = {
        "progress": dense["progress"],
        **{f"progress.{name}": dense[name] for name in _INTERPOLATED[1:]},
        "progress.trend": scores["trend"][before],
        "progress.scored": scored,
        "next.reward": reward(dense["progress"], dense["delta"], bool(done[-1]), fps, derivation),
        # The result of an action is in the following frame, LeRobot's meaning of "next".
        "next.success": np.append(done[1:], done[-1]),
    }
    if derivation.smooth:
        smooth = smoothed(scores["frame"] / fps, scores["progress"], derivation.horizon_s / 2)
        columns["progress.smoothed"] = interpolate(scores["frame"], smooth, frames)
    return columns


def interpolate(at: np.ndarray, value: np.ndarray, frames: int) -> np.ndarray:
    """Return values f32 [frames] from values at some frames, the last one among them."""
    dense = np.interp(np.arange(frames), at, value)
    dense[at] = value  # a NaN spreads to interpolated neighbours, not to scored frames
    return dense.astype(np.float32)


def reward(
    progress: np.ndarray, delta: np.ndarray, done: bool, fps: float, derivation: Derivation
) -> np.ndarray:
    """Return the reward f32 [t] of going from each frame to the next.

    The discount is `gamma` per time between scored frames, and a delta is spread over its horizon:
    rewards at 10 and at 50 frames/s have the same return. The last frame ends the episode
    (`next.done`) for whatever reason: its potential is 0, so that coming near the goal pays
    nothing, and a done task adds reward 1. The reward is 0 while the reward model abstains; the
    change meanwhile is paid at its next prediction.
    """
    if derivation.reward == "delta":
        share = 1.0 / max(1.0, fps * derivation.horizon_s)
        return (share * shaping.raw_delta(np.append(delta[1:], np.nan))).astype(np.float32)
    before, gap = shaping.held(progress)
    after = np.append(before[1:], before[-1])
    ended = np.zeros(len(progress), np.bool_)
    ended[-1] = True
    gamma = derivation.gamma_per_frame(fps)
    rewards = shaping.shaped(before, after, gamma=gamma, ended=ended, done_bonus=float(done))
    abstained = np.append(gap[1:], False)
    return np.where(abstained, 0.0, rewards).astype(np.float32)


def smoothed(time_s: np.ndarray, value: np.ndarray, sigma_s: float) -> np.ndarray:
    """Return values averaged over past and future with a Gaussian of standard deviation `sigma_s`.

    NaN stays NaN and has no weight.
    """
    valid = ~np.isnan(value)
    result = np.full(len(value), np.nan, np.float32)
    for i in np.flatnonzero(valid):
        near = valid & (np.abs(time_s - time_s[i]) <= 3 * sigma_s)
        away = (time_s[near] - time_s[i]) / max(sigma_s, 1e-9)
        weight = np.exp(-0.5 * away**2)
        result[i] = weight @ value[near] / weight.sum()
    return result


def episode_metrics(
    source: Source, episode: int, columns: ScoredColumns, derivation: Derivation
) -> dict[str, Any]:
    """Return the metrics of one scored episode, by the names of `EPISODE_COLUMNS`.

    They are computed over scored frames; those of several segments are averaged by length.
    """
    weight, parts = [], []
    for number in range(len(source.segments[episode])):
        rows = columns["segment"] == number
        weight.append(int(rows.sum()))
        parts.append(_curve_metrics(_select(columns, rows)))
    metrics = {name: _mean([p[name] for p in parts], weight) for name in parts[0]}
    done = columns["done_prob"] >= derivation.done_threshold
    success = float(columns["done_prob"][-1])
    return {
        **metrics,
        "labels/success_prob": success,
        "labels/first_done_frame": int(columns["frame"][np.argmax(done)]) if done.any() else -1,
        "labels/review": _needs_review(columns, success),
    }


def _curve_metrics(columns: ScoredColumns) -> dict[str, float]:
    value = columns["progress"][~np.isnan(columns["progress"])].astype(np.float64)
    delta = columns["delta"][1:][~np.isnan(columns["delta"][1:])]
    falls = np.maximum.accumulate(value) - value
    return {
        "labels/voc": spearman(value, np.arange(len(value))) if len(value) > 1 else math.nan,
        "labels/negative_rate": float(np.mean(delta < 0)) if len(delta) else math.nan,
        "labels/max_regression": float(falls.max()) if len(falls) else math.nan,
        "labels/stagnation_ratio": float(np.mean(columns["trend"] == 0)),
    }


def _mean(values: list[float], weight: list[int]) -> float:
    valid = [(v, w) for v, w in zip(values, weight, strict=True) if not math.isnan(v)]
    return sum(v * w for v, w in valid) / sum(w for _, w in valid) if valid else math.nan


def _needs_review(columns: ScoredColumns, success: float) -> bool:
    """Return whether a person should look: undecided, abstained, inconsistent or mismatched."""
    valid = columns["progress"][~np.isnan(columns["progress"])]
    abstained = 1 - len(valid) / len(columns["progress"])
    conflict = abs(valid[-1] - success) if len(valid) else 1.0
    return bool(
        UNDECIDED[0] < success < UNDECIDED[1]
        or abstained > MAX_ABSTAINED
        or conflict > MAX_CONFLICT
        or np.mean(columns["match"]) < 0.5
    )


def no_metrics() -> dict[str, Any]:
    """Return the metrics of an episode that was not scored."""
    blank: dict[str, Any] = dict.fromkeys(EPISODE_COLUMNS, math.nan)
    return {**blank, "labels/first_done_frame": -1, "labels/review": False}
