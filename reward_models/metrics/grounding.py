"""Language and consistency: the instruction must matter, the sampling of the video must not."""

import numpy as np

from reward_models.metrics.episodes import DONE, Episodes
from reward_models.metrics.ranks import auroc, tally
from reward_models.metrics.resample import Draw, Statistic, mean_over_tasks, over_episodes

REJECTED = 0.1
"""Progress below which an instruction counts as rejected."""


def diagonal_margin(episodes: Episodes, mismatched: Episodes) -> Statistic:
    """Return the final value under the right instruction minus that under a mismatched one.

    Over episodes that end in success: elsewhere the right instruction has no high value either.
    """
    margin = (episodes.final_value - mismatched.final_value).astype(np.float64)
    return mean_over_tasks(np.where(episodes.succeeded, margin, np.nan))


def mismatch_rejected(mismatched: Episodes) -> Statistic:
    """Return the share of mismatched instructions that end with value < 0.1 and done < 0.5."""
    rejected = (mismatched.final_value < REJECTED) & (mismatched.final_done < DONE)
    return mean_over_tasks(rejected.astype(np.float64))


def mismatch_rejected_throughout(mismatched: Episodes) -> Statistic:
    """Return the share below both bounds in every frame; abstention counts as below."""
    value = np.nan_to_num(mismatched.value, nan=0.0)
    accepted = (value >= REJECTED) | (mismatched.done_prob >= DONE)
    return mean_over_tasks(
        np.array([not part.any() for part in mismatched.cut(accepted)], np.float64)
    )


def match_auroc(episodes: Episodes, mismatched: Episodes) -> Statistic:
    """Return the chance that `match` is higher under the right instruction than a mismatched one.

    Over all frames.
    """
    matched = np.arange(len(episodes.match) + len(mismatched.match)) < len(episodes.match)
    counts = tally(np.concatenate([episodes.match, mismatched.match]), matched)
    episode = np.concatenate([episodes.episode, mismatched.episode])
    return over_episodes(lambda weight: auroc(*counts(weight[episode])))


def path_agreement(episodes: Episodes, curves: np.ndarray) -> Statistic:
    """Return 1 minus the mean distance between the highest and lowest of several curves.

    Curves f32 [c, f] are values of the same frames at different strides (1, 2, 5, 10); NaN where a
    stride leaves the frame out. Frames with fewer than two values do not count.
    """
    valid = ~np.isnan(curves)
    high = np.where(valid, curves, -np.inf).max(0)
    low = np.where(valid, curves, np.inf).min(0)
    shared = valid.sum(0) > 1
    distance = np.where(shared, high - low, np.nan)
    known = (part[~np.isnan(part)] for part in episodes.cut(distance))
    mean = np.array([part.mean() if len(part) else np.nan for part in known], np.float64)
    return mean_over_tasks(1.0 - mean)


def mirror_error(episodes: Episodes, changes: np.ndarray) -> Statistic:
    """Return the largest |d(A, B) + d(B, A)| of the set.

    Changes of progress f32 [2, f] are compared from the horizon's beginning A to every frame B, and
    from B to A.
    """
    return _largest(episodes, changes.sum(0))


def rate_error(episodes: Episodes, resampled: np.ndarray) -> Statistic:
    """Return the largest difference to values f32 [f] of the same moments at another frame rate.

    NaN where the other rate has none.
    """
    return _largest(episodes, episodes.value - resampled)


def _largest(episodes: Episodes, error: np.ndarray) -> Statistic:
    per_episode = [np.abs(part[~np.isnan(part)]).max(initial=-1.0) for part in episodes.cut(error)]
    largest = np.array(per_episode, np.float64)

    def statistic(draw: Draw) -> float:
        worst = largest[draw.weight.any(0)].max(initial=-1.0)
        return float(worst) if worst >= 0 else float("nan")

    return statistic
