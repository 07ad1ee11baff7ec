"""The tool is no faster than its bound, in every tick, and stays on its path."""

import mujoco
import numpy as np
import pytest

from robot_bridge.launching import package_files
from robot_bridge.motion import limits, spline
from robot_bridge.safety import obstacles
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from robot_bridge.safety.stages import Unbounded
from robot_bridge.safety.tool_speed import ToolSpeed
from sim.core.scene import ASSETS
from vla.contracts import registry

DT_S = 0.01
BOUND = 0.25


def spec_of(name):
    return registry.load("vla.robots", name).SPEC


def fastest(robot, path, dt_s):
    """Return the largest speed of the tool in m/s on a path, by the robot's own model."""
    model = mujoco.MjModel.from_xml_path(str(ASSETS / robot.mjcf))
    data = mujoco.MjData(model)
    address = [model.joint(name).qposadr[0] for name in robot.names]
    places = []
    for pose in path:
        data.qpos[address] = pose
        mujoco.mj_kinematics(model, data)
        places.append(data.site("tool").xpos.copy())
    return np.linalg.norm(np.diff(places, axis=0), axis=1).max() / dt_s


def drive(robot, tool_speed, seed, ticks=400):
    """Return the path f64 [t, u] of a gate that follows random chunks at 10 Hz."""
    allowed = limits.read(package_files.params() / f"{robot.name}_limits.yaml", robot)
    gate = Gate(GateConfig(max_start_deviation=10.0), allowed, tool_speed=tool_speed)
    rng, pose = np.random.default_rng(seed), np.array(robot.home)
    gate.measure(0.0, pose)
    assert gate.enable(0.0, True) == ""
    path = []
    for k in range(1, ticks):
        now_s = k * DT_S
        gate.measure(now_s, pose)
        if k % 10 == 1:
            ends = rng.uniform(allowed.low, allowed.high)
            targets = pose + np.linspace(0.1, 1, 8)[:, None] * (ends - pose)
            gate.offer(now_s, "policy", now_s + np.arange(8) / 10, targets, 0.0)
        pose = gate.tick(now_s)
        path.append(pose)
    return gate, np.array(path)


@pytest.mark.parametrize("name", ["so101", "panda"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_tool_keeps_its_bound_at_every_tick_and_between(name, seed):
    robot = spec_of(name)
    gate, path = drive(robot, ToolSpeed(robot, BOUND, DT_S), seed)
    assert fastest(robot, path, DT_S) <= BOUND
    between = np.concatenate([
        [c @ w for w in weights(8)] for c in np.lib.stride_tricks.sliding_window_view(path, 4, 0)
    ])  # fmt: skip
    assert fastest(robot, between, DT_S / 8) <= BOUND
    assert fastest(robot, path, DT_S) > 0.6 * BOUND  # it moves
    assert gate.counts["tool_speed"] > 10
    _, free = drive(robot, Unbounded(), seed)
    assert fastest(robot, free, DT_S) > 2 * BOUND


def weights(steps):
    """Return the weights of four control points at times within a tick."""
    t = np.arange(steps)[:, None] / steps
    return (
        np.hstack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3])
        / 6
    )


def test_the_weights_are_those_of_the_commanded_spline():
    path = np.random.default_rng(0).normal(size=(4, 2))
    np.testing.assert_allclose(weights(4)[0] @ path, spline.knots(path, DT_S).positions[0])


def test_joints_are_slowed_alike_so_that_the_tool_stays_on_its_path():
    robot = spec_of("so101")
    allowed = limits.of_spec(robot)
    bound = ToolSpeed(robot, BOUND, DT_S)
    gate = Gate(GateConfig(), allowed)
    gate.measure(0.0, np.array(robot.home))
    gate.enable(0.0, True)
    speed = np.array([3.0, -1.5, 2.4, 0.0, 2.0, 0.0])
    slowed = bound.slowed(allowed, gate.motion, gate.motion.p, speed)
    share = slowed.velocity[0] / abs(speed[0])
    assert share < 1
    np.testing.assert_allclose(slowed.velocity[speed != 0], share * np.abs(speed[speed != 0]))
    assert bound.slowed(allowed, gate.motion, gate.motion.p, 0.1 * speed) is allowed


def test_without_a_bound_nothing_is_loaded_and_without_a_model_it_is_said():
    robot = spec_of("so101")
    assert isinstance(obstacles.tool_speed(robot, 0.0, DT_S), Unbounded)
    assert isinstance(obstacles.tool_speed(robot, BOUND, DT_S), ToolSpeed)
