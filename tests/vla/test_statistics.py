"""The Wilson interval against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla.utils.statistics import Z95, wilson

Z2 = Z95**2


def test_half_of_the_trials() -> None:
    # p = 1/2, n = 4: centre (1/2 + z2/8) / (1 + z2/4) = 1/2; half width z sqrt(1/16 + z2/64) /
    # (1 + z2/4) = (z / 4) sqrt(1 + z2/4) / (1 + z2/4) = (z / 4) / sqrt(1 + z2 / 4)
    half = Z95 / 4 / (1 + Z2 / 4) ** 0.5
    assert wilson(2, 4) == pytest.approx((0.5 - half, 0.5 + half))
    assert wilson(2, 4) == pytest.approx((0.1500, 0.8500), abs=1e-4)


def test_none_and_all_of_the_trials() -> None:
    # p = 0: centre and half width are both z2 / (2 n) / (1 + z2 / n), so the upper end is
    # z2 / (n + z2): for n = 200, 3.8415 / 203.8415
    assert wilson(0, 200) == pytest.approx((0.0, Z2 / (200 + Z2)))
    assert wilson(200, 200) == pytest.approx((200 / (200 + Z2), 1.0))


def test_the_bar_of_the_main_job() -> None:
    # 190 of 200: centre (0.95 + 0.0096036) / 1.0192073 = 0.941520, half width
    # 1.959964 / 1.0192073 * sqrt(0.95 * 0.05 / 200 + 3.8414588 / 160000) = 0.031098
    assert wilson(190, 200) == pytest.approx((0.910422, 0.972618), abs=2e-6)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_it_holds_the_share_and_mirrors(pair: tuple[int, int]) -> None:
    successes, trials = pair
    low, high = wilson(successes, trials)
    rounding = 1e-12
    assert 0 <= low <= successes / trials + rounding
    assert successes / trials - rounding <= high <= 1
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 5)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson(successes, trials)
