"""Order and direction: agreement of value and trend with time and truth."""

import numpy as np

from reward_models.core.truth import trend_of
from reward_models.metrics import ranks, resample
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.resample import Draw, Statistic, Weighted

LEVELS = 101
"""Value and truth are rounded to hundredths; smaller differences are ties."""
REGRESS, STAGNATION, PROGRESS = 0, 1, 2


def voc(episodes: Episodes) -> Statistic:
    """Return the value-order correlation: Spearman of value with time in successful episodes.

    VLAC's metric. A clock has 1 on any video, so it is no evidence alone.
    """
    return resample.mean_over_tasks(_order(episodes))


def vroc(backward: Episodes) -> Statistic:
    """Return the same for frames, truth and predictions in reversed order.

    It is 1 where the value falls throughout.
    """
    return resample.mean_over_tasks(-_order(backward, backward.success[backward.begin]))


def voc_f1(episodes: Episodes, backward: Episodes) -> Statistic:
    """Return the harmonic mean of `voc` and `vroc`; 0 where one of them is not above 0."""
    forward, reverse = voc(episodes), vroc(backward)

    def statistic(draw: Draw) -> float:
        a, b = forward(draw), reverse(draw)
        if np.isnan(a + b):
            return float("nan")
        return 2 * a * b / (a + b) if min(a, b) > 0 else 0.0

    return statistic


def _order(episodes: Episodes, counted: np.ndarray | None = None) -> np.ndarray:
    """Return Spearman of value with time of every episode, f64 [n]; NaN where not counted."""
    counted = episodes.succeeded if counted is None else counted
    order = np.full(len(episodes.task), np.nan)
    parts = zip(episodes.cut(episodes.value), episodes.cut(episodes.time_s), strict=True)
    for i, (value, time_s) in enumerate(parts):
        valid = ~np.isnan(value)
        if counted[i]:
            order[i] = ranks.spearman(value[valid], time_s[valid])
    return order


def truth_correlation(episodes: Episodes) -> Statistic:
    """Return Spearman of value with true progress over all frames of a task, averaged over tasks.

    Both are rounded to hundredths. Tasks whose true progress never changes do not count.
    """
    return _of_levels(episodes, ranks.spearman_of_counts)


def truth_error(episodes: Episodes) -> Statistic:
    """Return the mean absolute error of value over all frames of a task, averaged over tasks.

    Both are rounded to hundredths. Tasks whose true progress never changes do not count.
    """
    level = np.arange(LEVELS)
    distance = np.abs(level[:, None] - level[None, :]) / (LEVELS - 1)

    def error(table: np.ndarray) -> float:
        changes = np.count_nonzero(table.sum(0)) > 1
        return float((table * distance).sum() / table.sum()) if changes else float("nan")

    return _of_levels(episodes, error)


def _of_levels(episodes: Episodes, metric: Weighted) -> Statistic:
    """Return the mean over tasks of a metric of counts of value i [rows] and truth j [columns]."""
    valid = ~np.isnan(episodes.value)
    value = _level(np.where(valid, episodes.value, 0.0))
    code = value * LEVELS + _level(episodes.progress)
    place = np.zeros(len(episodes.task), np.int64)

    def build(chosen: np.ndarray) -> Weighted:
        place[chosen] = np.arange(len(chosen))
        frames = np.flatnonzero(valid & np.isin(episodes.episode, chosen))
        codes, owner = code[frames], place[episodes.episode[frames]]
        return lambda weight: metric(
            np.bincount(codes, weight[owner], LEVELS**2).reshape(LEVELS, LEVELS)
        )

    return resample.each_task(episodes, build)


def _level(x: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(x, 0.0, 1.0) * (LEVELS - 1)).astype(np.int64)


def negative_rate(episodes: Episodes) -> Statistic:
    """Return the share of changes below 0 in successful episodes (VLAC's NR), of those not NaN."""
    counted = episodes.succeeded[episodes.episode] & ~np.isnan(episodes.delta)
    negative = counted & (episodes.delta < 0)

    def rate(weight: np.ndarray) -> float:
        total = weight @ counted
        return float(weight @ negative / total) if total > 0 else float("nan")

    return resample.over_frames(episodes, rate)


def coverage(episodes: Episodes) -> Statistic:
    """Return the share of frames without abstention."""
    valid = ~np.isnan(episodes.value)
    return resample.over_frames(episodes, lambda weight: float(weight @ valid / weight.sum()))


def true_direction(episodes: Episodes) -> np.ndarray:
    """Return the direction of the truth over the horizon before every frame, i64 [f]."""
    return trend_of(episodes.progress - episodes.progress[episodes.anchor])


def predicted_direction(trend: np.ndarray) -> np.ndarray:
    """Return the most likely direction, i64 [f]; of equal ones, stagnation first."""
    order = np.array([STAGNATION, PROGRESS, REGRESS])
    return order[np.argmax(trend[:, order], axis=1)]


def direction_f1(episodes: Episodes) -> Statistic:
    """Return the macro-F1 of the trend over the directions that occur.

    The first frame of an episode does not count.
    """
    counts = _confusion(episodes)

    def f1(weight: np.ndarray) -> float:
        table = np.tensordot(weight, counts, 1)
        right, true, predicted = np.diag(table), table.sum(1), table.sum(0)
        return float(np.mean((2 * right / np.maximum(true + predicted, 1e-12))[true > 0]))

    return resample.over_episodes(f1)


def regress_recall(episodes: Episodes) -> Statistic:
    """Return the share of frames with true regress where the trend is regress."""
    return _regress(episodes, axis=1)


def regress_precision(episodes: Episodes) -> Statistic:
    """Return the share of frames with predicted regress where the truth fell; NaN without any."""
    return _regress(episodes, axis=0)


def _regress(episodes: Episodes, axis: int) -> Statistic:
    counts = _confusion(episodes)

    def share(weight: np.ndarray) -> float:
        table = np.tensordot(weight, counts, 1)
        total = table.sum(axis)[REGRESS]
        return float(table[REGRESS, REGRESS] / total) if total > 0 else float("nan")

    return resample.over_episodes(share)


def _confusion(episodes: Episodes) -> np.ndarray:
    """Return the counts of truth i and trend j in every episode, f64 [n, 3, 3]."""
    pair = 3 * true_direction(episodes) + predicted_direction(episodes.trend)
    later = np.ones(len(pair), bool)
    later[episodes.begin] = False
    code = (9 * episodes.episode + pair)[later]
    return np.bincount(code, minlength=9 * len(episodes.task)).reshape(-1, 3, 3).astype(np.float64)


def gain_per_s(value: np.ndarray, time_s: np.ndarray) -> float:
    """Return how far a curve [t] rises above its first value, per second; NaN does not count.

    On frozen video, all of it is false.
    """
    valid = value[~np.isnan(value)]
    length_s = float(time_s[-1] - time_s[0])
    if length_s <= 0:
        return float("nan")
    return float(valid.max() - valid[0]) / length_s if len(valid) else 0.0


def false_gain(frozen: Episodes) -> Statistic:
    """Return the mean of `gain_per_s` over stretches of frozen video, each an episode."""
    parts = zip(frozen.cut(frozen.value), frozen.cut(frozen.time_s), strict=True)
    return resample.mean_over_tasks(
        np.array([gain_per_s(value, time_s) for value, time_s in parts])
    )
