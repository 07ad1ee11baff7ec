"""The tool goes where a twist says, joints stay in their limits, singularities stay slow."""

from dataclasses import replace

import numpy as np
import pytest

from robot_bridge.policy.servo import Servo
from robot_bridge.safety.tool_speed import ToolSpeed
from vla.contracts import registry

DT_S = 0.02


@pytest.fixture(scope="module", params=["so101", "panda"])
def robot(request):
    return registry.load("vla.robots", request.param).SPEC


@pytest.fixture(scope="module")
def bent(robot):
    """A pose far from singularities and limits."""
    if robot.name == "so101":
        return np.array([0.1, -0.6, 0.9, 0.5, 0.0, 0.3])
    return np.array([0.1, -0.3, 0.1, -2.0, 0.1, 1.8, 0.7, 0.02])


def drive(robot, pose, linear, angular=(0, 0, 0), seconds=0.5, **options):
    servo = Servo(robot)
    for _ in range(round(seconds / DT_S)):
        velocity = servo.velocity(pose, np.array(linear), np.array(angular), **options)
        pose = servo.ahead(pose, velocity, np.array([DT_S]))[0]
    return pose


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_tool_moves_as_told_in_the_frame_of_the_base(robot, bent, axis, sign):
    linear = np.zeros(3)
    linear[axis] = sign * 0.04
    place = ToolSpeed(robot, 1.0, DT_S).place
    moved = place(drive(robot, bent, linear)) - place(bent)
    assert moved[axis] == pytest.approx(0.5 * linear[axis], rel=0.3)
    assert np.linalg.norm(np.delete(moved, axis)) < 0.3 * abs(moved[axis])


def test_in_the_frame_of_the_tool_its_z_is_where_it_points(robot, bent):
    tool = ToolSpeed(robot, 1.0, DT_S)
    before = tool.place(bent)
    tool._set(bent)
    axis = tool._data.site_xmat[tool._site].reshape(3, 3)[:, 2].copy()
    moved = tool.place(drive(robot, bent, (0, 0, 0.04), in_tool=True)) - before
    assert moved @ axis / np.linalg.norm(moved) > 0.9


def test_the_gripper_never_moves_and_no_joint_is_too_fast(robot, bent):
    gripper = robot.names.index(robot.gripper.channel)
    limits = np.array([channel.velocity for channel in robot.channels])
    for linear, angular in (([9, -9, 9], [9, 9, 9]), ([0, 0, 0], [0, 0, 50])):
        velocity = Servo(robot).velocity(bent, np.array(linear), np.array(angular))
        assert velocity[gripper] == 0
        assert (np.abs(velocity) <= limits + 1e-9).all()
        assert (np.abs(velocity) / limits).max() > 0.9


COUPLED = """<mujoco>
  <worldbody><body><joint name="a" axis="0 0 1"/><geom size="0.01" pos="0.1 0 0"/>
    <body pos="0.2 0 0"><joint name="follower" axis="0 0 1"/><geom size="0.01" pos="0.1 0 0"/>
      <site name="tool" pos="0.2 0 0"/>
      <body pos="0.2 0 0"><joint name="grip" axis="0 0 1"/><geom size="0.01"/></body>
    </body></body></worldbody>
  <equality><joint joint1="follower" joint2="a" polycoef="0 -1 0 0 0"/></equality>
</mujoco>"""


def test_a_joint_that_follows_another_the_other_way_counts_as_it_moves(robot, tmp_path):
    (tmp_path / "coupled.xml").write_text(COUPLED)
    channels = tuple(
        replace(robot.channels[0], name=name, low=-2.0, high=2.0) for name in ("a", "grip")
    )
    gripper = replace(robot.gripper, channel="grip", open=0.5, closed=0.0)
    coupled = replace(
        robot,
        mjcf=str(tmp_path / "coupled.xml"),
        channels=channels,
        gripper=gripper,
        home=(0.0, 0.0),
    )
    pose = np.array([0.4, 0.0])
    place = ToolSpeed(coupled, 1.0, DT_S).place
    along = place(pose + [1e-4, 0]) - place(pose)  # which way the tool really goes
    velocity = Servo(coupled).velocity(pose, along / np.linalg.norm(along), np.zeros(3))
    assert velocity[0] > 0


def test_a_singularity_stays_slow_and_ranges_are_kept(robot):
    """Stretched out, no joint can move the tool further; it must not race either."""
    servo = Servo(robot)
    rng = np.random.default_rng(0)
    low, high = np.array(robot.low), np.array(robot.high)
    for _ in range(300):
        pose = rng.uniform(low, high)
        velocity = servo.velocity(pose, rng.normal(0, 0.05, 3), rng.normal(0, 0.1, 3))
        assert np.isfinite(velocity).all()
        assert np.linalg.norm(velocity) < 0.25 / (2 * 0.03)  # the bound of damped least squares
        way = servo.ahead(pose, velocity, np.linspace(0, 5, 6))
        assert (way >= low).all()
        assert (way <= high).all()
