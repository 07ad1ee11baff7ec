"""A world by ticks: rates, ends of episodes."""

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.vec_env import load_robot, load_task
from sim.vector.realtime_world import RealtimeWorld


@pytest.fixture(scope="module")
def scene():
    return compile_scene(load_task("reach"), load_robot("so101"))


@pytest.mark.parametrize("hz", [30, 80, 1000, 3])
def test_a_rate_that_divides_nothing_is_refused_with_those_that_are_right(scene, hz):
    with pytest.raises(ValueError, match=f"got {hz}.*10, 20, 40, 50, 100, 200 are right"):
        RealtimeWorld(scene, hz)


@pytest.mark.parametrize("hz", [10, 50, 200])
def test_a_control_step_ends_after_a_tenth_of_a_second_at_every_rate(scene, hz):
    live = RealtimeWorld(scene, hz)
    live.begin(0, 0)
    home = np.array(scene.robot.home)
    ends = [live.tick(home) for _ in range(hz)]
    assert sum(ends) == live.world.steps == 10
    assert ends[-1]


def test_after_the_end_the_arm_obeys_and_nothing_counts(scene):
    live = RealtimeWorld(scene, 10)
    live.begin(0, 0)
    home = np.array(scene.robot.home)
    while live.running:
        live.tick(home)
    before = live.state()
    assert (before["truncated"], before["terminated"], before["success"]) == (True, False, False)
    for _ in range(20):
        assert not live.tick(home + 0.1)
    moved = live.world.data.qpos[live.world.joint_qpos] - home
    assert np.abs(moved).max() > 0.05
    assert live.state()["steps"] == before["steps"]
    live.begin(1, 4)
    assert live.state()["running"]
    assert (live.state()["seed"], live.state()["number"], live.state()["steps"]) == (1, 4, 0)


def test_an_episode_may_begin_in_the_world_as_it_is(scene):
    live = RealtimeWorld(scene, 10)
    live.begin(0, 0)
    home = np.array(scene.robot.home)
    for _ in range(10):
        live.tick(home + 0.2)
    before, balls = live.world.data.qpos.copy(), live.world.episode.balls_m
    live.begin_in_place(0, 1)
    np.testing.assert_array_equal(live.world.data.qpos, before)
    assert (live.state()["number"], live.state()["steps"], live.state()["running"]) == (1, 0, True)
    assert np.abs(live.world.episode.balls_m - balls).max() > 0.01
    same = RealtimeWorld(scene, 10)
    same.begin(0, 1)
    np.testing.assert_array_equal(live.world.episode.balls_m, same.world.episode.balls_m)
    assert live.state()["instruction"] == same.state()["instruction"]


def test_begin_in_place_is_refused_where_objects_must_be_placed():
    live = RealtimeWorld(compile_scene(load_task("push"), load_robot("so101")), 10)
    live.begin(0, 0)
    with pytest.raises(ValueError, match="objects of this task have to be put in place"):
        live.begin_in_place(0, 1)
    assert live.state()["number"] == 0


def test_the_expert_continues_from_the_arms_pose_and_plans_again_after_a_handover(scene):
    live = RealtimeWorld(scene, 10)
    live.begin(0, 0)
    home = np.array(scene.robot.home)
    for _ in range(5):
        live.tick(home + 0.2)
    first = live.expert_action()
    np.testing.assert_array_equal(
        first, RealtimeWorld.expert_action(live)
    )  # the arm has not moved meanwhile
    live.release_expert()
    np.testing.assert_array_equal(first, live.expert_action())
    for _ in range(30):
        live.tick(live.expert_action())
    assert live.state()["success"]


def test_an_episode_may_wait_for_its_time_while_the_arm_obeys(scene):
    live = RealtimeWorld(scene, 10)
    live.begin(0, 0)
    live.paused = True
    home = np.array(scene.robot.home)
    for _ in range(100):
        assert not live.tick(home + 0.2)
    assert np.abs(live.world.data.qpos[live.world.joint_qpos] - home).max() > 0.1
    assert (live.state()["steps"], live.state()["running"]) == (0, True)
    live.paused = False
    live.tick(home)
    assert live.state()["steps"] == 1
