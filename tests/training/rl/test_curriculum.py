"""The curriculum of leads: most often where there is most to learn, and the same in any process."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.training.rl.fake_rollouts import Says, control, episode, groups
from tests.training.rl.runs import config, start
from training.core import loop
from training.rl.config import OnlineRLConfig, RuntimeConfig
from training.rl.experience import episode_store
from training.rl.experience.episode import ActionSource, Episode
from training.rl.experience.rewards import EpisodeReward
from training.rl.intervention.intervention import InterventionController
from training.rl.runners import curriculum


def led(lead: int, decisions: int = 6) -> Episode:
    by = np.zeros(decisions, np.int8)
    by[:lead] = ActionSource.INTERVENTION
    return replace(episode(decisions), action_source=by)


def worth(success: bool) -> EpisodeReward:
    return EpisodeReward(reward=np.zeros(6), potential=np.zeros(7), success=success)


def test_the_guide_steps_of_an_episode_come_before_the_policy() -> None:
    assert [curriculum.guide_steps(led(n)) for n in (0, 2, 6)] == [0, 2, 6]


def test_without_data_every_jump_start_is_equally_likely() -> None:
    np.testing.assert_allclose(curriculum.guide_step_probs([], [], 3), [0.25] * 4)


def test_jump_starts_are_drawn_where_success_is_neither_certain_nor_hopeless() -> None:
    """Lead 0 never succeeds, 4 does at times and 8 always, 40 times each; with kernels of width 1
    the others hardly reach them: shares are 0.5/41, 20.5/41 and 40.5/41.
    """
    tried = [(led(n, 10), worth(n == 8 or (n == 4 and k % 2 == 0)))
             for n in (0, 4, 8) for k in range(40)]  # fmt: skip
    found = curriculum.guide_step_probs([e for e, _ in tried], [w for _, w in tried], 8)
    assert found.sum() == pytest.approx(1.0)
    assert found[4] / found[0] == pytest.approx(0.26 / (0.5 / 41 * 40.5 / 41 + 0.01), rel=0.02)
    assert found[4] / found[8] == pytest.approx(found[4] / found[0], rel=0.02)


@pytest.mark.parametrize("other", [ActionSource.INTERVENTION, ActionSource.RETRACE])
def test_an_episode_with_interventions_after_its_jump_start_is_no_success_of_the_policy(
    other: int,
) -> None:
    helped, alone = led(1), led(1)
    helped.action_source[4] = other
    failed = curriculum.guide_step_probs([alone] * 9, [worth(success=False)] * 9, 2)
    np.testing.assert_allclose(
        curriculum.guide_step_probs([helped] * 9, [worth(success=True)] * 9, 2), failed
    )
    done = curriculum.guide_step_probs([alone] * 9, [worth(success=True)] * 9, 2)
    assert done == pytest.approx(failed)  # s (1 - s) is symmetric
    mixed = curriculum.guide_step_probs([alone, helped], [worth(success=True)] * 2, 2)
    assert mixed[1] > failed[1]


def test_jump_starts_follow_their_probabilities() -> None:
    told = control(jump_start={"fraction": 1.0, "max_guide_steps": 2, "curriculum": True})
    one = InterventionController(told, seed=3, remaining=0.0, scorer=Says(), views=(0, 1),
                 guide_step_probs=np.array([0.0, 0.25, 0.75]))  # fmt: skip
    drawn = [one._plan(number).guide_steps for number in range(400)]
    assert set(drawn) == {1, 2}
    assert drawn.count(2) / 400 == pytest.approx(0.75, abs=0.07)


def test_the_curriculum_is_stored_with_the_iterations_and_damage_is_reported(tmp_path) -> None:
    episode_store.write_guide_step_probs(tmp_path, 2, np.array([0.25, 0.75]))
    np.testing.assert_array_equal(episode_store.read_guide_step_probs(tmp_path, 2), [0.25, 0.75])
    (tmp_path / "jump-start-000002.json").write_text("[0.25,")
    for number in (1, 2):
        with pytest.raises(ValueError, match=r"jump-start-00000\d.json: missing or damaged"):
            episode_store.read_guide_step_probs(tmp_path, number)


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="jump_start.curriculum: got no jump starts to draw"):
        control(jump_start={"curriculum": True})
    with pytest.raises(ValueError, match="jump_start.curriculum: got runtime.max_policy_lag 1"):
        OnlineRLConfig(
            **groups(jump_start={"curriculum": True, "fraction": 1.0}),
            runtime=RuntimeConfig(distributed=True, max_policy_lag=1),
        )


def test_an_iteration_begins_with_the_stored_curriculum(begun, tmp_path) -> None:
    run = config(
        **groups(jump_start={"fraction": 1.0, "max_guide_steps": 3, "curriculum": True}), steps=2
    )
    place = start(begun, tmp_path)
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    kept = [episode_store.read_guide_step_probs(place.experience, number) for number in range(2)]
    assert kept[0].tolist() == [0.25] * 4
    assert kept[1].tolist() != kept[0].tolist()
    for number in range(2):
        made = episode_store.read_iteration(place.experience, episode_store.iteration_name(number))
        assert all(curriculum.guide_steps(one) <= 3 for one in made)
