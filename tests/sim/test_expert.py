"""Inverse kinematics and motions of the experts."""

import mujoco
import numpy as np
import pytest

from sim.core.kinematics import kinematics, solve
from sim.core.layout import half_width_m
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.motions import Motion, grasp_yaw
from sim.tasks import reach
from vla.contracts.specs import RobotSpec
from vla.robots import panda, so101


@pytest.fixture(params=[so101.SPEC, panda.SPEC], ids=["so101", "panda"], scope="module")
def world(request: pytest.FixtureRequest) -> MujocoWorld:
    return MujocoWorld(compile_scene(reach.Config(), request.param), vary=False)


def _tool(robot: RobotSpec, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    arm = kinematics(robot)
    data = mujoco.MjData(arm.configuration.model)
    data.qpos[arm.joint_qpos] = pose
    mujoco.mj_kinematics(arm.configuration.model, data)
    return data.site("tool").xpos.copy(), data.site("tool").xmat.reshape(3, 3).copy()


def test_the_tool_gets_within_2_mm_at_grasping_height(world: MujocoWorld) -> None:
    robot, rng = world.robot, np.random.default_rng(0)
    near, far = robot.reach_m
    errors = []
    for _ in range(40):
        y = rng.uniform(-1, 1) * half_width_m(robot)
        pos = np.array([rng.uniform(near, far), y, rng.uniform(0.015, 0.06)])
        azimuth = np.arctan2(pos[1], pos[0])
        pose = solve(robot, np.array(robot.home), pos, azimuth + rng.uniform(-0.7, 0.7))
        errors.append(np.linalg.norm(_tool(robot, pose)[0] - pos))
    assert np.percentile(errors, 95) < 0.002
    assert max(errors) < 0.007


@pytest.mark.parametrize("yaw", [-0.6, 0.0, 0.6])
def test_the_opening_direction_follows_the_yaw(world: MujocoWorld, yaw: float) -> None:
    robot = world.robot
    pos = np.array([np.mean(robot.reach_m), 0.02, 0.02])
    _, axes = _tool(robot, solve(robot, np.array(robot.home), pos, yaw))
    np.testing.assert_allclose(axes[:, 1], [-np.sin(yaw), np.cos(yaw), 0.0], atol=0.03)
    assert axes[2, 2] < -0.99


def test_the_same_question_has_the_same_answer(world: MujocoWorld) -> None:
    robot = world.robot
    pos = np.array([np.mean(robot.reach_m), 0.05, 0.03])
    first = solve(robot, np.array(robot.home), pos)
    solve(robot, np.array(robot.home), pos + 0.05)
    np.testing.assert_array_equal(solve(robot, np.array(robot.home), pos), first)


def test_actions_keep_to_the_limits_of_velocity_and_position(world: MujocoWorld) -> None:
    world.reset(0, 0)
    robot = world.robot
    period_s = 1.0 / robot.control_hz
    largest = np.array([c.velocity for c in robot.channels]) * period_s
    motion = Motion(world)
    motion.opening = robot.gripper.open
    for action in motion.move(np.array([robot.reach_m[1], 0.08, 0.02]), 0.5, clearance_m=0.05):
        assert np.all(np.abs(action - motion.measured) <= largest + 1e-9)
        assert np.all(action >= robot.low)
        assert np.all(action <= robot.high)
        world.step(action)


def test_a_move_arrives_and_then_ends(world: MujocoWorld) -> None:
    world.reset(0, 0)
    goal = np.array([np.mean(world.robot.reach_m), -0.05, 0.03])
    motion = Motion(world)
    steps = 0
    for action in motion.move(goal, tolerance_m=0.006):
        world.step(action)
        steps += 1
    assert 5 <= steps <= 30
    assert np.linalg.norm(motion.tool_m - goal) < 0.006


def test_a_move_with_clearance_comes_down_from_above(world: MujocoWorld) -> None:
    world.reset(0, 0)
    goal = np.array([np.mean(world.robot.reach_m), 0.07, 0.02])
    motion = Motion(world)
    for action in motion.move(goal, clearance_m=0.05):
        world.step(action)
        aside = np.linalg.norm((motion.tool_m - goal)[:2])
        if aside > 0.04:
            assert motion.tool_m[2] > 0.045
    assert motion.tool_m[2] == pytest.approx(0.02, abs=0.006)


def test_an_action_depends_on_the_state_alone(world: MujocoWorld) -> None:
    """Two motions in the same state act alike, whatever the one did before."""
    world.reset(0, 0)
    goal = np.array([np.mean(world.robot.reach_m), 0.05, 0.05])
    motion = Motion(world)
    for _, action in zip(range(4), motion.move(goal), strict=False):
        world.step(action)
    np.testing.assert_array_equal(motion.toward(goal), Motion(world).toward(goal))


def test_gripping_stops_when_the_hand_is_where_it_should_be(world: MujocoWorld) -> None:
    world.reset(0, 0)
    motion = Motion(world)
    hand = world.robot.gripper
    for action in motion.grip(hand.open, max_steps=20):
        world.step(action)
    span = abs(hand.open - hand.closed)
    assert abs(motion.measured[motion.gripper] - hand.open) < 0.05 * span


def test_waiting_holds_the_arm_for_the_steps_asked_for(world: MujocoWorld) -> None:
    world.reset(0, 0)
    motion = Motion(world)
    before = motion.measured
    actions = []
    for action in motion.wait(5):
        actions.append(action)
        world.step(action)
    assert len(actions) == 5
    np.testing.assert_allclose(motion.measured, before, atol=1e-4)


def test_pressing_pushes_below_the_surface(world: MujocoWorld) -> None:
    world.reset(0, 0)
    top = np.array([np.mean(world.robot.reach_m), 0.03, 0.03])
    motion = Motion(world)
    for action in motion.press(top):
        world.step(action)
    assert motion.tool_m[2] < 0.025
    assert np.linalg.norm((motion.tool_m - top)[:2]) < 0.008


def test_a_grasp_turns_the_wrist_by_an_eighth_turn_at_most() -> None:
    # Straight ahead (azimuth 0): a box turned by 100 degrees shows the same faces as by 10.
    assert grasp_yaw(np.array([0.2, 0.0, 0.0]), np.radians(100)) == pytest.approx(np.radians(10))
    # At 45 degrees to the left a box at yaw 0 is an eighth turn off either way.
    yaw = grasp_yaw(np.array([0.2, 0.2, 0.0]), 0.0)
    assert abs(yaw - np.pi / 4) == pytest.approx(np.pi / 4)
    for turn in np.linspace(-4, 4, 33):
        yaw = grasp_yaw(np.array([0.2, 0.1, 0.0]), float(turn))
        assert abs(yaw - np.arctan2(0.1, 0.2)) <= np.pi / 4 + 1e-9
        # The same up to quarter turns as the box's own.
        assert np.sin(2 * (yaw - turn)) == pytest.approx(0.0, abs=1e-9)
