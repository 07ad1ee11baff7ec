"""The BC anchor: rollouts of the start policy where they are better than the data for sure."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training.rl.fake_rollouts import episode
from tests.training.rl.runs import ALGOS, config, start
from training.rl.experience.episode import ActionSource
from training.rl.experience.rewards import EpisodeReward
from training.rl.runners import bc_regularization


def outcomes(good: int, count: int) -> list[bool]:
    return [True] * good + [False] * (count - good)


@pytest.mark.parametrize(
    ("policy", "data", "kept"),
    [
        ((12, 40), (12, 12), "data"),
        # Wilson: 38 of 40 lies above 83.5 %, 20 of 40 below 64.8 %.
        ((38, 40), (20, 40), "policy"),
        # 24 of 40 lies above 44.6 %, 20 of 40 below 64.8 %: they cannot be told apart.
        ((24, 40), (20, 40), "data"),
        ((4, 4), (0, 40), "data"),
        ((5, 5), (0, 40), "policy"),
        ((40, 40), (0, 0), "data"),
    ],
)
def test_the_policy_is_held_on_to_where_it_is_better_for_sure(policy, data, kept) -> None:
    assert bc_regularization.choose(outcomes(*policy), outcomes(*data)) == kept


def worth(success: bool) -> EpisodeReward:
    zeros = np.zeros(3, np.float32)
    return EpisodeReward(reward=zeros[:2], potential=zeros, success=success)


def test_episodes_with_interventions_do_not_count_for_the_policy() -> None:
    own, other = episode(2, success=True), episode(2, success=True)
    other = replace(other, action_source=np.array([0, ActionSource.INTERVENTION], np.int8))
    said = bc_regularization.policy_success(
        [own, other, own], [worth(True), worth(True), worth(False)]
    )
    assert said == [True, False]


def test_data_succeeded_as_their_last_step_says_or_else_altogether() -> None:
    success, offsets = np.array([0, 0, 1, 1, 0], np.float32), np.array([0, 3, 5])
    assert bc_regularization.recorded_success(success, offsets) == [True, False]
    assert bc_regularization.recorded_success(None, offsets) == [True, True]


@pytest.mark.parametrize(
    "algo", [name for name in ALGOS if name not in ("asymmetric_ac", "residual_ac")]
)
@pytest.mark.parametrize("preserve", ["auto", "data", "policy"])
def test_cloning_draws_from_what_is_held_on_to(algo, preserve, begun, tmp_path) -> None:
    run = config(algo, bc_anchor=preserve, episodes_per_iteration=2)
    learner = run.algo.start(run, start(begun, tmp_path))
    learner.collect()
    rounds = learner.runner
    rounds.rewards = [replace(one, success=True) for one in rounds.rewards]
    mine = {e.images.tobytes() for e in rounds.episodes}
    drawn = learner.sample_demos(3, 2)
    seen = {image.tobytes() for e in rounds.episodes for image in e.images}
    own = all(np.asarray(image).tobytes() in seen for image in drawn.images)
    # Two episodes are too few to say anything by themselves.
    assert own == (preserve == "policy")
    assert learner.rollout_metrics["rollout/bc_anchor_is_policy"] == float(preserve == "policy")
    assert len(mine) == 2


def test_without_a_success_of_its_own_there_is_nothing_of_the_policy_to_hold_on_to(
    begun, tmp_path
) -> None:
    run = config(bc_anchor="policy")
    learner = run.algo.start(run, start(begun, tmp_path))
    learner.collect()
    learner.runner.rewards = [replace(one, success=False) for one in learner.runner.rewards]
    assert len(learner.sample_demos(3, 2).images) > 0
