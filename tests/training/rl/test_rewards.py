"""Rewards and returns of practice, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training.rl.fake_rollouts import episode
from training.rl.experience.gae import advantages, discounted
from training.rl.experience.rewards import compute_rewards, true_rewards
from vla.contracts.types import Progress


class Says:
    """A reward model that says what it is told to."""

    def __init__(self, value, done) -> None:
        self.value, self.done = value, done

    def start(self, batch, example=None, task=""):
        raise AssertionError("rewards are of whole episodes")

    def step(self, state, frames, task):
        raise AssertionError("rewards are of whole episodes")

    def score(self, frames, task, example=None) -> Progress:
        self.task = task
        n = len(frames.time_s)
        assert n == len(self.value)
        zero = np.zeros(n, np.float32)
        return Progress(
            value=np.array(self.value, np.float32), delta=zero, trend=np.zeros((n, 3), np.float32),
            done_prob=np.array(self.done, np.float32), match=zero, confidence=zero,
        )  # fmt: skip


def test_a_truncated_episode_goes_on_by_its_last_value_and_a_terminated_one_does_not() -> None:
    reward, value = np.array([0.0, 1.0]), np.array([0.5, 0.25, 2.0], np.float32)
    # delta_1 = 1 + 0.9 * 2 - 0.25 = 2.55, delta_0 = 0 + 0.9 * 0.25 - 0.5 = -0.275
    cut = advantages(reward, value, terminated=False, gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(cut, [-0.275 + 0.45 * 2.55, 2.55], rtol=1e-6)
    # Here delta_1 = 1 - 0.25 = 0.75.
    over = advantages(reward, value, terminated=True, gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(over, [-0.275 + 0.45 * 0.75, 0.75], rtol=1e-6)


def test_discounted_sums() -> None:
    np.testing.assert_allclose(discounted(np.array([1.0, 0.0, 4.0]), 0.5), [2.0, 2.0, 4.0])


def test_the_sparse_reward_is_the_simulators() -> None:
    (found,) = compute_rewards([episode(2, success=True)], "sparse", gamma=0.9)
    assert found.reward.tolist() == [0.0, 1.0]
    assert found.success


def test_the_oracle_pays_progress_and_success_so_that_the_sum_is_the_discounted_success() -> None:
    (found,) = compute_rewards(
        [episode(2, success=True, progress=(0.0, 0.5, 1.0))], "dense_oracle", gamma=0.9
    )
    # 0.9 * 0.5 - 0, then 0 - 0.5 + 1: the potential of an end counts as 0.
    np.testing.assert_allclose(found.reward, [0.45, 0.5], rtol=1e-6)
    assert discounted(found.reward, 0.9)[0] == pytest.approx(0.9)


def test_the_reward_model_alone_says_what_succeeded_and_the_simulator_is_not_asked() -> None:
    liked = replace(episode(2, success=False), terminated=True)
    (found,) = compute_rewards([liked], "learned", gamma=1.0, scorer=Says([0, 0.4, 1], [0, 0, 0.9]))
    assert found.success
    np.testing.assert_allclose(found.reward, [0.4, 0.6 + 1], rtol=1e-6)
    (found,) = compute_rewards(
        [liked], "learned+sparse", gamma=1.0, scorer=Says([0, 0.4, 1], [0, 0, 0.9])
    )
    assert not found.success
    np.testing.assert_allclose(found.reward, [0.4, -0.4], rtol=1e-6)


def test_silence_earns_nothing_and_is_settled_when_the_reward_model_speaks_again() -> None:
    cut = replace(episode(3, success=False), terminated=False)
    reward_model = Says([0.2, np.nan, 0.6, np.nan], [0, 0, 0, 0])
    (found,) = compute_rewards([cut], "learned", gamma=1.0, scorer=reward_model)
    np.testing.assert_allclose(found.reward, [0.0, 0.4, 0.0], atol=1e-6)


def test_an_episode_is_judged_by_its_own_instruction() -> None:
    reward_model = Says([0, 0, 0], [0, 0, 0])
    compute_rewards([episode(2)], "learned", gamma=1.0, scorer=reward_model)
    assert reward_model.task == ("push it",)


def test_a_reward_models_reward_without_a_reward_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match="reward 'learned' needs a reward model; give one with --reward-model"
    ):
        compute_rewards([episode(2)], "learned", gamma=0.9)


def test_the_truth_is_the_same_reward_of_what_the_simulator_knows() -> None:
    seen = [episode(2, success=True, progress=(0.0, 0.5, 1.0))]
    says = Says([0.0, 0.5, 1.0], [0.0, 0.0, 1.0])
    for source in ("learned", "learned+sparse"):
        (told,) = compute_rewards(seen, source, gamma=0.9, scorer=says)
        (real,) = true_rewards(seen, source, gamma=0.9)
        np.testing.assert_allclose(real.reward, told.reward, rtol=1e-6)
    wrong = Says([0.0, 0.2, 0.1], [0.0, 0.0, 0.0])
    (told,), (real,) = (
        compute_rewards(seen, "learned", gamma=0.9, scorer=wrong),
        true_rewards(seen, "learned", gamma=0.9),
    )
    np.testing.assert_allclose(told.reward, [0.2, -0.1], rtol=1e-6)
    np.testing.assert_allclose(real.reward, [0.5, 0.5 + seen[0].terminated], rtol=1e-6)
    for source in ("sparse", "dense_oracle"):
        (told,), (real,) = (
            compute_rewards(seen, source, gamma=0.9),
            true_rewards(seen, source, gamma=0.9),
        )
        np.testing.assert_array_equal(told.reward, real.reward)
