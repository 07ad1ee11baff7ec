"""Rewards from progress: potentials cannot be farmed, raw deltas can, silence pays nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_models.core.shaping import held, raw_delta, shaped

NAN = float("nan")
CURVES = st.lists(st.floats(0, 1), min_size=2, max_size=20)


def rewards(phi: np.ndarray, gamma: float, bonus: float = 0.0, ends: bool = True) -> np.ndarray:
    ended = np.zeros(len(phi) - 1, bool)
    ended[-1] = ends
    return shaped(phi[:-1], phi[1:], gamma=gamma, ended=ended, done_bonus=bonus)


def test_a_step_by_hand() -> None:
    found = shaped(
        np.array([0.5, 0.5]), np.array([0.8, 0.2]), gamma=0.9, ended=np.array([False, False])
    )
    np.testing.assert_allclose(found, [0.9 * 0.8 - 0.5, 0.9 * 0.2 - 0.5])


@given(CURVES, st.floats(0.5, 1.0))
def test_the_return_of_an_episode_depends_on_its_beginning_and_its_end_alone(
    curve: list[float], gamma: float
) -> None:
    # the discounted sum telescopes: gamma^T * 0 - Phi(first), plus the discounted bonus
    phi = np.array(curve)
    found = rewards(phi, gamma, bonus=1.0)
    discount = gamma ** np.arange(len(found))
    assert discount @ found == pytest.approx(discount[-1] - phi[0], abs=1e-9)


def test_going_back_and_forth_earns_nothing() -> None:
    phi = np.array([0.2, 0.8, 0.2, 0.8, 0.2])
    assert rewards(phi, 1.0, ends=False).sum() == pytest.approx(0.0)


def test_a_time_limit_is_no_end() -> None:
    assert rewards(np.array([0.2, 0.6]), 1.0, ends=False)[0] == pytest.approx(0.4)
    assert rewards(np.array([0.2, 0.6]), 1.0)[0] == pytest.approx(-0.2)


def test_steps_into_and_out_of_silence_pay_nothing_but_the_bonus_is_paid() -> None:
    phi = np.array([0.2, NAN, 0.9, NAN])
    np.testing.assert_allclose(rewards(phi, 1.0, bonus=1.0), [0.0, 0.0, 1.0])


def test_gaps_hold_what_was_known_last() -> None:
    found, gap = held(np.array([NAN, 0.2, NAN, NAN, 0.5]))
    np.testing.assert_array_equal(found, [NAN, 0.2, 0.2, 0.2, 0.5])
    assert gap.tolist() == [True, False, True, True, False]


def test_the_raw_delta_warns_that_loops_earn_reward() -> None:
    with pytest.warns(UserWarning, match="loses and regains progress over and over"):
        found = raw_delta(np.array([0.5, NAN, -0.2]))
    assert found.tolist() == [0.5, 0.0, -0.2]
