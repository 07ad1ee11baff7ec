"""Done and outcome: detection of completion, and ranking of episodes by how they end."""

from collections.abc import Callable

import numpy as np

from reward_models.core.truth import level_of
from reward_models.metrics import ranks, resample
from reward_models.metrics.episodes import DONE, Episodes
from reward_models.metrics.resample import Statistic, Weighted

NEAR_MISS = "near_miss"


def done_auroc(episodes: Episodes) -> Statistic:
    """Return the chance that a complete frame has a higher `done_prob` than an incomplete one."""
    return _of_done(episodes, ranks.auroc)


def done_auprc(episodes: Episodes) -> Statistic:
    """Return the average precision of `done_prob`."""
    return _of_done(episodes, ranks.average_precision)


def done_false_positives(episodes: Episodes) -> Statistic:
    """Return the false-positive rate of the threshold that finds 95 % of the complete frames."""
    return _of_done(episodes, ranks.false_positive_rate)


def _of_done(episodes: Episodes, figure: Callable[[np.ndarray, np.ndarray], float]) -> Statistic:
    counts = ranks.tally(episodes.done_prob, episodes.success)
    return resample.over_frames(episodes, lambda weight: figure(*counts(weight)))


def done_latency(episodes: Episodes) -> Statistic:
    """Return the frames from the first true done to the first predicted done.

    Where it is never predicted, the frames that are left count: a lower bound; see `done_recall`.
    """
    delay = _delays(episodes)
    return resample.mean_over_tasks(np.where(np.isnan(delay), _left(episodes), delay))


def done_recall(episodes: Episodes) -> Statistic:
    """Return the share of episodes with a true done that is predicted then or later."""
    detected = (~np.isnan(_delays(episodes))).astype(np.float64)
    return resample.mean_over_tasks(np.where(np.isnan(_left(episodes)), np.nan, detected))


def _first_done(success: np.ndarray) -> int | None:
    return int(np.argmax(success)) if success.any() else None


def _left(episodes: Episodes) -> np.ndarray:
    """Return the frames from the first true done on, f64 [n]; NaN without one."""
    first = [_first_done(part) for part in episodes.cut(episodes.success)]
    length = np.diff(np.append(episodes.begin, len(episodes.episode)))
    pairs = zip(length, first, strict=True)
    return np.array([np.nan if f is None else n - f for n, f in pairs], np.float64)


def _delays(episodes: Episodes) -> np.ndarray:
    """Return frames from true to predicted done, f64 [n]; NaN where either is missing."""
    delays = np.full(len(episodes.task), np.nan)
    parts = zip(episodes.cut(episodes.success), episodes.cut(episodes.done_prob), strict=True)
    for i, (success, done) in enumerate(parts):
        first = _first_done(success)
        if first is not None and (done[first:] >= DONE).any():
            delays[i] = np.argmax(done[first:] >= DONE)
    return delays


def undone_recall(episodes: Episodes) -> Statistic:
    """Return the share of undone successes that are predicted as such.

    Counted are episodes that were complete and are not at the end; predicted means that done is
    predicted after the first true done, and not at the end.
    """
    undone = ~np.isnan(_left(episodes)) & ~episodes.succeeded
    detected = ~np.isnan(_delays(episodes)) & (episodes.final_done < DONE)
    return resample.mean_over_tasks(np.where(undone, detected.astype(np.float64), np.nan))


def outcome_auroc(episodes: Episodes) -> Statistic:
    """Return the chance that a success ends with a higher value than a failure of its task."""
    return _of_outcome(episodes, episodes.final_value)


def outcome_auroc_of_done(episodes: Episodes) -> Statistic:
    """Return the same chance for `done_prob` at the end."""
    return _of_outcome(episodes, episodes.final_done)


def _of_outcome(episodes: Episodes, score: np.ndarray) -> Statistic:
    # Over pairs of two levels, AUROC is tau_a scaled from [-1, 1] to [0, 1]; a tie counts half.
    ranked = _tau(episodes, score, episodes.succeeded.astype(np.int64))
    return lambda draw: 0.5 * (1.0 + ranked(draw))


def outcome_level(episodes: Episodes) -> np.ndarray:
    """Return 2 for success at the end, 1 for progress of 0.3 or more there, else 0; i64 [n]."""
    return level_of(episodes.succeeded, episodes.progress[episodes.last])


def outcome_tau(episodes: Episodes) -> Statistic:
    """Return Kendall's tau_a of the final value over success > partial > failure.

    Over pairs of episodes of the same task and different level, then averaged over tasks.
    """
    return _tau(episodes, episodes.final_value, outcome_level(episodes))


def _tau(episodes: Episodes, score: np.ndarray, level: np.ndarray) -> Statistic:
    def build(chosen: np.ndarray) -> Weighted:
        signs, above = ranks.concordance(score[chosen], level[chosen])
        return lambda weight: ranks.tau(signs, above, weight)

    return resample.each_task(episodes, build)


def near_miss_rate(episodes: Episodes) -> Statistic:
    """Return the share of near misses, not complete at the end, that are predicted done there."""
    missed = (np.array(episodes.behaviour) == NEAR_MISS) & ~episodes.succeeded
    predicted = (episodes.final_done >= DONE).astype(np.float64)
    return resample.mean_over_tasks(np.where(missed, predicted, np.nan))


def false_done_rate(episodes: Episodes) -> Statistic:
    """Return the share of all episodes without success at the end that are predicted done."""
    predicted = (episodes.final_done >= DONE).astype(np.float64)
    return resample.mean_over_tasks(np.where(episodes.succeeded, np.nan, predicted))
