"""The figures of a report: what labels say per task, and how they compare with the truth.

A figure that is not defined, such as an AUROC of one class, is NaN.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reward_models.calibrate import WITHIN
from reward_models.label_report.doubt import reasons
from reward_models.label_report.read import Episode, mean

BINS = 10
STILL = 0.01
"""True progress that changes by no more than this stands still."""
STILL_S = 1.0
"""Shortest stretch of standing still that counts."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """How labels compare with the simulator's truth; NaN where it does not say."""

    spearman: float
    """Rank correlation of progress with true progress, over the measured frames of all episodes."""
    error: float
    """Mean absolute error of progress."""
    done_auroc: float
    """How well done_prob tells solved frames from others."""
    outcome_auroc: float
    """How well success_prob tells episodes that end in success from others."""
    successes: int
    """Episodes that end in success."""


@dataclass(frozen=True, kw_only=True)
class TaskFigures:
    """The figures of some episodes; means are over episodes."""

    name: str
    """Instruction, or what else the episodes have in common."""
    episodes: int
    frames: int
    final_progress: float
    success_prob: float
    voc: float
    negative_rate: float
    max_regression: float
    stagnation_ratio: float
    abstained: float
    """Share of frames."""
    flagged: int
    """Episodes that a person should see."""
    truth: Truth | None
    """None if no episode carries any."""


class Bin(NamedTuple):
    """Predictions that lie close together."""

    predicted: float
    """Their mean."""
    observed: float
    """Share of them that came true."""
    frames: int


def task_figures(name: str, episodes: Sequence[Episode]) -> TaskFigures:
    """Return the figures of some episodes."""
    frames = sum(e.frames for e in episodes)
    return TaskFigures(
        name=name,
        episodes=len(episodes),
        frames=frames,
        final_progress=mean([e.final_progress for e in episodes]),
        success_prob=mean([e.success_prob for e in episodes]),
        voc=mean([e.voc for e in episodes]),
        negative_rate=mean([e.negative_rate for e in episodes]),
        max_regression=mean([e.max_regression for e in episodes]),
        stagnation_ratio=mean([e.stagnation_ratio for e in episodes]),
        abstained=1.0 - coverage(episodes),
        flagged=sum(bool(reasons(e)) for e in episodes),
        truth=_truth(episodes),
    )


def grouped(
    episodes: Sequence[Episode], key: Callable[[Episode], str | None]
) -> Iterator[TaskFigures]:
    """Yield the figures of the episodes that share a key, keys in order; None has no figures."""
    for name in sorted({found for e in episodes if (found := key(e)) is not None}):
        yield task_figures(name, [e for e in episodes if key(e) == name])


def coverage(episodes: Sequence[Episode]) -> float:
    """Return the share of frames for which progress was given."""
    return 1.0 - mean(np.concatenate([e.abstained for e in episodes]))


def _truth(episodes: Sequence[Episode]) -> Truth | None:
    if all(e.truth is None and e.success is None for e in episodes):
        return None
    value, truth = progress_pairs(episodes)
    ends = [(e.success_prob, bool(e.success[-1])) for e in episodes if e.success is not None]
    return Truth(
        spearman=spearman(value, truth),
        error=mean(np.abs(value - truth)),
        done_auroc=auroc(*done_pairs(episodes)),
        outcome_auroc=auroc(np.array([p for p, _ in ends]), np.array([s for _, s in ends], bool)),
        successes=sum(won for _, won in ends),
    )


# --- predictions beside what was true ------------------------------------------------------------


def progress_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return progress and true progress, f64 [n] each, of the frames measured and not abstained."""
    value, truth = [np.zeros(0)], [np.zeros(0)]
    for e in episodes:
        if e.truth is not None:
            given = e.scored & ~e.abstained
            value.append(e.progress[given])
            truth.append(e.truth[given])
    return np.concatenate(value), np.concatenate(truth)


def done_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return done_prob f64 [n] and whether the task was solved, bool [n], of measured frames."""
    value, truth = [np.zeros(0)], [np.zeros(0, bool)]
    for e in episodes:
        if e.success is not None:
            value.append(e.done_prob[e.scored])
            truth.append(e.success[e.scored])
    return np.concatenate(value), np.concatenate(truth)


def confidence_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence f64 [n] and whether progress was within `WITHIN` of the truth, bool [n].

    Where the critic abstained, it said nothing that could be right.
    """
    value, right = [np.zeros(0)], [np.zeros(0, bool)]
    for e in episodes:
        if e.truth is not None:
            given = e.scored & ~e.abstained
            value.append(e.confidence[given])
            right.append(np.abs(e.progress[given] - e.truth[given]) <= WITHIN)
    return np.concatenate(value), np.concatenate(right)


# --- statistics ----------------------------------------------------------------------------------


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the rank correlation of a and b [n]; NaN if either is constant."""
    a, b = ranks(a), ranks(b)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def auroc(score: np.ndarray, label: np.ndarray) -> float:
    """Return the probability that a true row [n] scores higher than a false one; ties count half.

    The statistic of Mann and Whitney 1947, divided by its largest value.
    """
    known = ~np.isnan(score)
    score, label = score[known], label[known]
    wins, losses = int(label.sum()), int((~label).sum())
    if not wins or not losses:
        return float("nan")
    return float((ranks(score)[label].sum() - wins * (wins + 1) / 2) / (wins * losses))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1, f64 [n]; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - 0.5 * (count - 1))[place]


def reliability(predicted: np.ndarray, true: np.ndarray) -> list[Bin]:
    """Return the filled ones of `BINS` equal bins of predictions f64 [n] in [0, 1]."""
    known = ~np.isnan(predicted)
    predicted, true = predicted[known], true[known]
    place = np.minimum((predicted * BINS).astype(int), BINS - 1)
    return [
        Bin(float(predicted[here].mean()), float(true[here].mean()), int(here.sum()))
        for k in range(BINS)
        if (here := place == k).any()
    ]


def calibration_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the mean of |predicted - observed| over bins, weighted by count (Guo et al. 2017)."""
    bins = reliability(predicted, true)
    total = sum(b.frames for b in bins)
    if not total:
        return float("nan")
    return sum(b.frames * abs(b.predicted - b.observed) for b in bins) / total


def false_gain(episodes: Sequence[Episode]) -> float:
    """Return the progress per second that labels gain where the truth stands still.

    Stretches last `STILL_S` at least; a loss in one does not pay for a gain in another.
    """
    gain, duration_s = 0.0, 0.0
    for e in episodes:
        for first, last in _still(e):
            given = np.flatnonzero(~e.abstained[first : last + 1]) + first
            if len(given) > 1:
                gain += max(0.0, float(e.progress[given[-1]] - e.progress[given[0]]))
                duration_s += float(given[-1] - given[0]) / e.fps
    return gain / duration_s if duration_s else float("nan")


def _still(e: Episode) -> Iterator[tuple[int, int]]:
    """Yield first and last frame of stretches over which the truth stays within `STILL`."""
    if e.truth is None:
        return
    first = 0
    for t in range(1, e.frames + 1):
        if t < e.frames and abs(e.truth[t] - e.truth[first]) <= STILL:
            continue
        if t - 1 - first >= STILL_S * e.fps:
            yield first, t - 1
        first = t
