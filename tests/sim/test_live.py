"""A world by ticks: rates, ends of episodes."""

import numpy as np
import pytest

from sim.live import Live
from sim.scene import compile_scene
from sim.vec_env import load_robot, load_task


@pytest.fixture(scope="module")
def scene():
    return compile_scene(load_task("reach"), load_robot("so101"))


@pytest.mark.parametrize("hz", [30, 80, 1000, 3])
def test_a_rate_that_divides_nothing_is_refused_with_those_that_are_right(scene, hz):
    with pytest.raises(ValueError, match=f"got {hz}.*10, 20, 40, 50, 100, 200 are right"):
        Live(scene, hz)


@pytest.mark.parametrize("hz", [10, 50, 200])
def test_a_control_step_ends_after_a_tenth_of_a_second_at_every_rate(scene, hz):
    live = Live(scene, hz)
    live.begin_(0, 0)
    home = np.array(scene.robot.home)
    ends = [live.tick_(home) for _ in range(hz)]
    assert sum(ends) == live.world.steps == 10
    assert ends[-1]


def test_after_the_end_the_arm_obeys_and_nothing_counts(scene):
    live = Live(scene, 10)
    live.begin_(0, 0)
    home = np.array(scene.robot.home)
    while live.running:
        live.tick_(home)
    before = live.state()
    assert (before["truncated"], before["terminated"], before["success"]) == (True, False, False)
    for _ in range(20):
        assert not live.tick_(home + 0.1)
    moved = live.world.data.qpos[live.world.joint_qpos] - home
    assert np.abs(moved).max() > 0.05
    assert live.state()["steps"] == before["steps"]
    live.begin_(1, 4)
    assert live.state()["running"]
    assert (live.state()["seed"], live.state()["number"], live.state()["steps"]) == (1, 4, 0)
