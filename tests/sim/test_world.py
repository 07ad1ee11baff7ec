"""One environment: rest, limits, randomness."""

import dataclasses

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.task import Task, World
from sim.core.world import MujocoWorld
from sim.vec_env import load_robot, load_task


@pytest.fixture
def world():
    return MujocoWorld(compile_scene(load_task("reach"), load_robot("so101")))


def test_a_world_and_its_task_satisfy_the_protocols(world):
    world.reset(0, 0)
    assert isinstance(world, World)
    assert isinstance(world.task, Task)


@pytest.mark.parametrize("robot", ["so101", "panda"])
def test_home_is_an_exact_equilibrium(robot):
    world = MujocoWorld(compile_scene(load_task("reach"), load_robot(robot)))
    world.reset(0, 0)
    before = world.data.qpos[world.joint_qpos].copy()
    for _ in range(20):
        world.step(np.array(world.robot.home))
    np.testing.assert_allclose(world.data.qpos[world.joint_qpos], before, atol=1e-6)


def test_coupled_joints_begin_where_their_leader_puts_them(world):
    world.reset(0, 0)
    gripper, mirror = (world.data.joint(name).qpos[0] for name in ("gripper", "gripper_mirror"))
    assert mirror == gripper == world.robot.home[5]


def test_targets_beyond_the_limits_are_clipped(world):
    world.reset(0, 0)
    world.step(np.full(6, 100.0))
    np.testing.assert_array_equal(world.data.ctrl[world.actuators], world.robot.high)


def test_the_same_seed_and_index_give_the_same_episode_to_the_bit(world):
    def play():
        world.reset(7, 3)
        actions = np.random.default_rng(0).uniform(world.robot.low, world.robot.high, (5, 6))
        for action in actions:
            world.step(action)
        return world.instruction, world.data.qpos.copy(), world.model.geom_rgba.copy()

    first = play()
    world.reset(8, 0)
    second = play()
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])
    np.testing.assert_array_equal(first[2], second[2])


def test_layouts_do_not_depend_on_whether_looks_vary():
    scene = compile_scene(load_task("pick_place"), load_robot("so101"))
    worlds = [MujocoWorld(scene, vary=vary) for vary in (True, False)]
    for world in worlds:
        world.reset(2, 5)
    np.testing.assert_array_equal(worlds[0].data.qpos, worlds[1].data.qpos)
    assert worlds[0].instruction == worlds[1].instruction


def test_an_episode_is_truncated_at_its_time_limit_and_not_terminated(world):
    world.reset(0, 0)
    flags = []
    while not flags or not any(flags[-1][1:]):
        flags.append(world.step(np.array(world.robot.home)))
    assert len(flags) == world.time_limit
    assert flags[-1] == (0.0, False, True)


def test_time_counts_control_steps(world):
    world.reset(0, 0)
    assert world.time_s == 0.0
    for _ in range(3):
        world.step(np.array(world.robot.home))
    assert world.time_s == pytest.approx(0.3)  # three steps at 10 Hz


def test_substeps_follow_the_control_rate():
    robot = load_robot("so101")
    assert compile_scene(load_task("reach"), robot).substeps == 20  # 0.1 s / 0.005 s
    fast = dataclasses.replace(robot, control_hz=50.0)
    assert compile_scene(load_task("reach"), fast).substeps == 4  # 0.02 s / 0.005 s


@pytest.mark.parametrize("task", ["reach", "pick_place", "cue_colour"])
def test_a_control_step_in_parts_ends_where_the_whole_does_to_the_bit(task):
    scene = compile_scene(load_task(task), load_robot("so101"))
    whole, parts = (MujocoWorld(scene) for _ in range(2))
    for world in (whole, parts):
        world.reset(3, 1)
    actions = np.random.default_rng(0).uniform(whole.robot.low, whole.robot.high, (30, 6))
    for action in actions:
        expected = whole.step(action)
        for _ in range(10):
            parts.drive(action, 2)
        assert parts.end_step() == expected
        for name in ("qpos", "qvel", "site_xpos", "geom_xpos"):
            np.testing.assert_array_equal(getattr(parts.data, name), getattr(whole.data, name))
