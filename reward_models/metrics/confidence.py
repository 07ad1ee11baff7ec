"""Calibration of probabilities, and error over coverage."""

from collections.abc import Callable

import numpy as np

from reward_models.core.calibration import WITHIN
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.resample import Statistic, Weighted, over_frames

BINS = 10
COVERAGE = 0.9
"""Coverage at which the error is reported."""
_STEPS = 1000


def calibration_error(probability: np.ndarray, right: np.ndarray) -> Weighted:
    """Return the expected calibration error over ten equal bins, a function of weights [n].

    Probabilities [n] lie in [0, 1]; outcomes are bool [n].
    """
    code = np.minimum((probability * BINS).astype(np.int64), BINS - 1)

    def error(weight: np.ndarray) -> float:
        if weight.sum() == 0:
            return float("nan")
        # Sums, not means: the weight of a bin in the error is the weight of its rows.
        gap = np.bincount(code, weight * (probability - right), BINS)
        return float(np.abs(gap).sum() / weight.sum())

    return error


def confidence_ece(episodes: Episodes) -> Statistic:
    """Return the calibration error of `confidence` against |value - truth| <= 0.1.

    Frames on which the reward model abstained do not count.
    """
    valid, miss = _misses(episodes)
    error = calibration_error(episodes.confidence[valid], miss <= WITHIN)
    return over_frames(episodes, lambda weight: error(weight[valid]))


def done_ece(episodes: Episodes) -> Statistic:
    """Return the calibration error of `done_prob` against success."""
    return over_frames(episodes, calibration_error(episodes.done_prob, episodes.success))


def risk(
    confidence: np.ndarray, miss: np.ndarray
) -> Callable[[np.ndarray, float], tuple[float, float]]:
    """Return error over coverage when the least confident rows are left out first.

    The result is a function of weights [n] and a coverage: the mean of errors [n] of that share,
    and the mean of this over all coverages. Rows of equal confidence count with their mean error.
    """
    levels, code = np.unique(-confidence, return_inverse=True)

    def curve(weight: np.ndarray, coverage: float) -> tuple[float, float]:
        count = np.bincount(code, weight, len(levels))
        total = np.append(0.0, np.cumsum(np.bincount(code, weight * miss, len(levels))))
        covered = np.append(0.0, np.cumsum(count))
        if covered[-1] == 0:
            return float("nan"), float("nan")
        steps = (np.arange(_STEPS) + 0.5) / _STEPS * covered[-1]
        area = float(np.mean(np.interp(steps, covered, total) / steps))
        included = coverage * covered[-1]
        return float(np.interp(included, covered, total) / included), area

    return curve


def risk_at_coverage(episodes: Episodes) -> Statistic:
    """Return the mean absolute error of the 90 % of frames with the highest confidence."""
    return _of_risk(episodes, 0)


def risk_area(episodes: Episodes) -> Statistic:
    """Return the mean absolute error, averaged over all coverages."""
    return _of_risk(episodes, 1)


def _misses(episodes: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Return which frames have a value, bool [f], and the errors of those."""
    valid = ~np.isnan(episodes.value)
    return valid, np.abs(episodes.value[valid] - episodes.progress[valid])


def _of_risk(episodes: Episodes, part: int) -> Statistic:
    valid, miss = _misses(episodes)
    curve = risk(episodes.confidence[valid], miss)
    return over_frames(episodes, lambda weight: curve(weight[valid], COVERAGE)[part])
