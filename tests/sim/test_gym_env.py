"""Gymnasium: every task is registered, passes its checker and shows what LeRobot reads."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sim import gym_plugin
from sim.vector.gym_env import MnemeEnv
from vla.contracts import registry


@pytest.mark.parametrize("task", registry.names("sim.tasks"))
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized.*")
def test_every_task_passes_gymnasiums_checker(task):
    env = gymnasium.make(gym_plugin.env_id(task), render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


def test_ids_are_in_camel_case():
    assert gym_plugin.env_id("cue_colour") == "mneme/CueColour-v0"
    assert gym_plugin.env_id("reach") == "mneme/Reach-v0"


def test_observations_have_the_keys_lerobot_reads():
    env = MnemeEnv("cue_colour")
    obs, info = env.reset(seed=0)
    assert set(obs) == {"pixels", "agent_pos"}
    assert set(obs["pixels"]) == {"front", "wrist"}
    assert env.task_description == info["task"] in env._world.task.instructions
    assert info["is_success"] is False


def test_resets_without_a_seed_go_on_to_new_episodes_that_a_seed_repeats():
    env = MnemeEnv("cue_colour", randomize=True)
    first, _ = env.reset(seed=3)
    second, _ = env.reset()
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(first["pixels"]["front"], again["pixels"]["front"])
    assert (first["pixels"]["front"] != second["pixels"]["front"]).any()


def test_a_bad_action_gets_a_sentence():
    env = MnemeEnv("cue_colour")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="expected \\(6,\\) finite"):
        env.step(np.zeros(5, np.float32))


def test_an_unknown_render_mode_gets_a_sentence():
    with pytest.raises(ValueError, match="got 'human'"):
        MnemeEnv("cue_colour", render_mode="human")
