"""Rank statistics with ties and a weight per row; numpy only."""

from collections.abc import Callable

import numpy as np

Tally = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From a weight per row to the weight of positives and negatives at every distinct score."""


def average_ranks(x: np.ndarray) -> np.ndarray:
    """Return ranks from 1, f64 [n]; equal values share the mean of their ranks."""
    _, code, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - 0.5 * (count - 1))[code]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation of the ranks of x and y [n].

    0 for a constant x; NaN for a constant y or fewer than two rows.
    """
    return spearman_of_ranks(average_ranks(x), average_ranks(y), np.ones(len(x)))


def spearman_of_ranks(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted correlation of ranks a and b, with `spearman`'s two exceptions."""
    total = weight.sum()
    if total == 0:
        return float("nan")
    a, b = a - weight @ a / total, b - weight @ b / total
    var_a, var_b = weight @ a**2, weight @ b**2
    # Ranks are multiples of a half: a variance below this is rounding.
    if var_b < 1e-6 * total:
        return float("nan")
    return float(weight @ (a * b) / np.sqrt(var_a * var_b)) if var_a >= 1e-6 * total else 0.0


def spearman_of_counts(table: np.ndarray) -> float:
    """Return Spearman's coefficient from counts of level i of x and level j of y, f64 [i, j]."""

    def ranks(count: np.ndarray) -> np.ndarray:
        return np.cumsum(count) - 0.5 * (count - 1)

    i, j = np.nonzero(table)
    return spearman_of_ranks(ranks(table.sum(1))[i], ranks(table.sum(0))[j], table[i, j])


def tally(score: np.ndarray, positive: np.ndarray) -> Tally:
    """Sort scores [n] once, for many weightings; `positive` is bool [n].

    The result is a function of weights [n] and returns two f64 [k], by ascending distinct score.
    """
    levels, code = np.unique(score, return_inverse=True)

    def counts(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        every = np.bincount(code, weight, len(levels))
        positives = np.bincount(code, weight * positive, len(levels))
        return positives, every - positives

    return counts


def auroc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Return the chance that a positive scores above a negative, a tie counting half.

    The arguments are what `tally` returns. NaN without positives or without negatives.
    """
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - 0.5 * negatives
    return float(positives @ below / pairs) if pairs > 0 else float("nan")


def labelled_auroc(score: np.ndarray, label: np.ndarray) -> float:
    """Return the AUROC of scores [n] for labels bool [n]; ties count half, NaN does not count."""
    valid = ~np.isnan(score)
    counts = tally(score[valid], label[valid])
    return auroc(*counts(np.ones(valid.sum())))


def average_precision(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Return the area under precision over recall as the sum of steps, without interpolation.

    Rows of equal score pass a threshold together; NaN where there is no positive.
    """
    hits, passed = positives[::-1], np.cumsum((positives + negatives)[::-1])
    precision = np.cumsum(hits) / np.maximum(passed, 1e-12)
    total = positives.sum()
    return float(hits @ precision / total) if total > 0 else float("nan")


def false_positive_rate(
    positives: np.ndarray, negatives: np.ndarray, recall: float = 0.95
) -> float:
    """Return the least false-positive rate of a threshold that finds `recall` of the positives."""
    if positives.sum() <= 0 or negatives.sum() <= 0:
        return float("nan")
    recalled = np.cumsum(positives[::-1]) / positives.sum()
    wrong = np.cumsum(negatives[::-1]) / negatives.sum()
    return float(wrong[np.argmax(recalled >= recall - 1e-12)])


def concordance(value: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs for tau_a, two f64 [n, n].

    Where level i is above level j: +1, 0 or -1 as value i is above, equal to or below value j; and
    1 where level i is above level j. Both are 0 elsewhere.
    """
    above = (level[:, None] > level[None, :]).astype(np.float64)
    return above * np.sign(np.subtract.outer(value, value)), above


def tau(signs: np.ndarray, above: np.ndarray, weight: np.ndarray) -> float:
    """Return Kendall's tau_a over the pairs of different level, NaN if there is none.

    `signs` and `above` are the results of `concordance`; weights are f64 [n].
    """
    pairs = weight @ above @ weight
    return float(weight @ signs @ weight / pairs) if pairs > 0 else float("nan")
