"""Environments say where the things are that an instruction names: as a recording does."""

import numpy as np
import pytest

from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from vla.contracts import referents
from vla.contracts.protocols import TellsReferents


@pytest.mark.parametrize("workers", [1, 2])
def test_they_are_those_of_the_worlds_after_every_step(workers):
    env = vec_env.make("tabletop", 2, workers=workers)
    assert isinstance(env, TellsReferents)
    assert env.has_referents
    scene = compile_scene(vec_env.load_task("tabletop"), vec_env.load_robot(None))
    worlds = [MujocoWorld(scene) for _ in range(2)]
    env.reset(3)
    for index, world in enumerate(worlds):
        world.reset(3, index)
    action = np.tile(np.array(env.spec.robot.home, np.float32), (2, 1))
    action[:, 0] += 0.3  # the camera at the wrist moves
    seen = []
    for _ in range(3):
        expected = np.stack([world.referents() for world in worlds])
        np.testing.assert_array_equal(env.referents(), expected)
        seen.append(expected)
        env.step(action)
        for row, world in enumerate(worlds):
            world.step(action[row])
    assert not np.array_equal(seen[0], seen[-1])
    env.close()


def test_a_recording_has_the_same_at_its_start():
    record = record_episode("tabletop", 3, 1, render=False)
    names = referents.columns(c.name for c in vec_env.load_robot(None).cameras)
    env = vec_env.make("tabletop", 2)
    env.reset(3)
    recorded = [record.labels[name][0] for name in names]
    np.testing.assert_array_equal(env.referents()[1].ravel(), recorded)


def test_there_are_none_before_a_reset():
    with pytest.raises(ValueError, match="referents before reset"):
        vec_env.make("reach", 1).referents()


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_have_not_begun_are_left_out(workers):
    """As in an actor process, whose rows wait for weights that are new enough."""
    env, all_begun = vec_env.make("tabletop", 3, workers=workers), vec_env.make("tabletop", 3)
    env.begin(np.array([1]), np.array([4]), np.array([1]))
    all_begun.reset(4)
    np.testing.assert_array_equal(env.referents()[1], all_begun.referents()[1])
    np.testing.assert_array_equal(env.privileged_state()[1], all_begun.privileged_state()[1])
    env.close()
