"""Rank statistics by hand, against scipy, and with ties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_models.metrics import ranks

stats = pytest.importorskip("scipy.stats")

COARSE = st.lists(st.integers(0, 4), min_size=3, max_size=30)


def pairs(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 5, size).astype(float), rng.integers(0, 5, size).astype(float)


def auroc(score: list[float], positive: list[bool], weight: list[float] | None = None) -> float:
    counts = ranks.tally(np.array(score), np.array(positive))
    return ranks.auroc(*counts(np.ones(len(score)) if weight is None else np.array(weight)))


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks.average_ranks(np.array([5.0, 1.0, 5.0, 7.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


@pytest.mark.parametrize("seed", range(5))
def test_spearman_is_that_of_scipy_with_ties(seed: int) -> None:
    x, y = pairs(seed, 40)
    assert ranks.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_a_constant_orders_nothing_and_a_constant_truth_has_no_order() -> None:
    rising, flat = np.arange(4.0), np.ones(4)
    assert ranks.spearman(flat, rising) == 0.0
    assert np.isnan(ranks.spearman(rising, flat))
    assert np.isnan(ranks.spearman(np.ones(1), np.ones(1)))
    assert np.isnan(ranks.spearman(np.ones(0), np.ones(0)))


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_levels_give_the_spearman_of_the_rows_they_count(seed: int) -> None:
    x, y = pairs(seed, 50)
    table = np.zeros((6, 5))  # level 5 of x never occurs
    np.add.at(table, (x.astype(int), y.astype(int)), 1.0)
    assert ranks.spearman_of_counts(table) == pytest.approx(ranks.spearman(x, y))


def test_auroc_by_hand() -> None:
    # positives 3 and 2, negatives 2 and 1: 3 > 2, 3 > 1, 2 = 2 (half), 2 > 1: 3.5 of 4 pairs
    assert auroc([3, 2, 2, 1], [True, True, False, False]) == 3.5 / 4


def test_auroc_of_a_constant_is_a_half_and_without_negatives_it_is_undefined() -> None:
    assert auroc([1, 1, 1], [True, False, False]) == 0.5
    assert np.isnan(auroc([1, 2], [True, True]))


@given(COARSE, st.integers(0, 2**16))
def test_auroc_is_the_mann_whitney_statistic(score: list[int], seed: int) -> None:
    positive = np.random.default_rng(seed).random(len(score)) < 0.5
    positive[:2] = True, False
    x = np.array(score, float)
    u = stats.mannwhitneyu(x[positive], x[~positive]).statistic
    expected = u / (positive.sum() * (~positive).sum())
    assert auroc(score, positive.tolist()) == pytest.approx(expected)


@given(COARSE, st.integers(0, 2**16))
def test_a_weight_is_as_good_as_a_repetition(score: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    positive, times = rng.random(len(score)) < 0.5, rng.integers(0, 3, len(score))
    counts = ranks.tally(np.array(score), positive)(times.astype(float))
    again = ranks.tally(np.repeat(score, times), np.repeat(positive, times))(np.ones(times.sum()))
    for figure in (ranks.auroc, ranks.average_precision, ranks.false_positive_rate):
        assert figure(*counts) == pytest.approx(figure(*again), nan_ok=True)


def test_average_precision_by_hand() -> None:
    # descending: + (precision 1/1), - , + (precision 2/3): (1 + 2/3) / 2
    counts = ranks.tally(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    assert ranks.average_precision(*counts(np.ones(4))) == pytest.approx((1 + 2 / 3) / 2)


def test_average_precision_of_a_constant_is_the_share_of_positives() -> None:
    counts = ranks.tally(np.zeros(5), np.array([True, False, False, False, False]))
    assert ranks.average_precision(*counts(np.ones(5))) == pytest.approx(0.2)


def test_the_false_positive_rate_is_that_of_the_strictest_threshold_that_finds_enough() -> None:
    # positives at 20 ... 1, of which 19 are 95 %: the threshold is at 2; of four negatives at
    # 30, 2, 1.5 and 0 two are at or above it
    score = np.array([*range(20, 0, -1), 30, 2, 1.5, 0])
    counts = ranks.tally(score, np.arange(24) < 20)
    assert ranks.false_positive_rate(*counts(np.ones(24))) == 2 / 4


def test_kendalls_tau_by_hand_and_a_tie_counts_nothing() -> None:
    # levels 2, 1, 0, 0 and values 0.9, 0.4, 0.4, 0.6: pairs of different level are 2-1 (+), 2-0
    # (+), 2-0 (+), 1-0 (tie), 1-0 (-): (3 - 1) / 5
    parts = ranks.concordance(np.array([0.9, 0.4, 0.4, 0.6]), np.array([2, 1, 0, 0]))
    assert ranks.tau(*parts, np.ones(4)) == pytest.approx(2 / 5)


@pytest.mark.parametrize("seed", range(3))
def test_without_ties_tau_is_that_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, level = rng.permutation(20).astype(float), rng.permutation(20)
    expected = stats.kendalltau(value, level).statistic
    assert ranks.tau(*ranks.concordance(value, level), np.ones(20)) == pytest.approx(expected)


def test_without_pairs_of_different_level_there_is_no_tau() -> None:
    assert np.isnan(ranks.tau(*ranks.concordance(np.arange(3.0), np.ones(3)), np.ones(3)))
