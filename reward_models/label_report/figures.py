"""Metrics of a report: of the labels per task, and against the truth.

An undefined metric, such as an AUROC of one class, is NaN.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reward_models.core.calibration import WITHIN
from reward_models.label_report.doubt import reasons
from reward_models.label_report.read import Episode, mean
from reward_models.metrics import confidence, ranks
from reward_models.metrics.confidence import BINS
from reward_models.metrics.progress import gain_per_s
from vla.data.inspection.numbers import still_runs

STILL = 0.01
"""Largest change of true progress that counts as standing still."""
STILL_S = 1.0
"""Shortest still stretch that counts."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Labels against the simulator's truth; NaN where it is unknown."""

    spearman: float
    """Rank correlation of progress with true progress, over the scored frames."""
    error: float
    """Mean absolute error of progress."""
    done_auroc: float
    """AUROC of done_prob for solved frames."""
    outcome_auroc: float
    """AUROC of success_prob for episodes that end in success."""
    successes: int
    """Episodes that end in success."""


@dataclass(frozen=True, kw_only=True)
class TaskFigures:
    """Metrics of some episodes; means are over episodes."""

    name: str
    """Instruction, or another common key."""
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
    """Episodes to review."""
    truth: Truth | None
    """None if no episode has any."""


class Bin(NamedTuple):
    """A bin of predictions."""

    predicted: float
    """Their mean."""
    observed: float
    """Share of them that came true."""
    frames: int


def task_figures(name: str, episodes: Sequence[Episode]) -> TaskFigures:
    """Return the metrics of some episodes."""
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
    """Yield the metrics of the episodes of each key, in order, without key None."""
    for name in sorted({name for e in episodes if (name := key(e)) is not None}):
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
        spearman=ranks.spearman(value, truth),
        error=mean(np.abs(value - truth)),
        done_auroc=ranks.labelled_auroc(*done_pairs(episodes)),
        outcome_auroc=ranks.labelled_auroc(
            np.array([p for p, _ in ends]), np.array([s for _, s in ends], bool)
        ),
        successes=sum(won for _, won in ends),
    )


def progress_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return progress and true progress, f64 [n] each, of scored frames without abstention."""
    value, truth = [np.zeros(0)], [np.zeros(0)]
    for e in episodes:
        if e.truth is not None:
            valid = e.scored & ~e.abstained
            value.append(e.progress[valid])
            truth.append(e.truth[valid])
    return np.concatenate(value), np.concatenate(truth)


def done_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return done_prob f64 [n] and whether the task was solved, bool [n], of scored frames."""
    value, truth = [np.zeros(0)], [np.zeros(0, bool)]
    for e in episodes:
        if e.success is not None:
            value.append(e.done_prob[e.scored])
            truth.append(e.success[e.scored])
    return np.concatenate(value), np.concatenate(truth)


def confidence_pairs(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence f64 [n] and whether progress is within `WITHIN` of the truth, bool [n].

    Of scored frames without abstention.
    """
    value, right = [np.zeros(0)], [np.zeros(0, bool)]
    for e in episodes:
        if e.truth is not None:
            valid = e.scored & ~e.abstained
            value.append(e.confidence[valid])
            right.append(np.abs(e.progress[valid] - e.truth[valid]) <= WITHIN)
    return np.concatenate(value), np.concatenate(right)


def reliability(predicted: np.ndarray, true: np.ndarray) -> list[Bin]:
    """Return the filled ones of `BINS` equal bins of predictions f64 [n] in [0, 1]."""
    valid = ~np.isnan(predicted)
    predicted, true = predicted[valid], true[valid]
    place = np.minimum((predicted * BINS).astype(int), BINS - 1)
    return [
        Bin(float(predicted[here].mean()), float(true[here].mean()), int(here.sum()))
        for k in range(BINS)
        if (here := place == k).any()
    ]


def calibration_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the mean of |predicted - observed| over bins, weighted by frames (Guo et al. 2017)."""
    valid = ~np.isnan(predicted)
    error = confidence.calibration_error(predicted[valid], true[valid])
    return error(np.ones(valid.sum()))


def false_gain(episodes: Sequence[Episode]) -> float:
    """Return the rise of labels per second where the truth is still for `STILL_S` or more."""
    rise, duration_s = 0.0, 0.0
    for e in episodes:
        for first, last in _still(e):
            stretch, length_s = slice(first, last + 1), (last - first) / e.fps
            rise += gain_per_s(e.progress[stretch], e.time_s[stretch]) * length_s
            duration_s += length_s
    return rise / duration_s if duration_s else float("nan")


def _still(e: Episode) -> Iterator[tuple[int, int]]:
    """Yield first and last frame of stretches over which the truth stays within `STILL`."""
    for first, end in [] if e.truth is None else still_runs(e.truth, STILL):
        if end - 1 - first >= STILL_S * e.fps:
            yield first, end - 1
