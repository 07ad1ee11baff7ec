"""Robots as files of the user, with a URDF and MoveIt's joint_limits.yaml beside them."""

import numpy as np
import pytest
import yaml

from robot_bridge.launching import driver, graph
from robot_bridge.motion import limits
from vla.contracts import registry, robot_file

URDF = """<robot name="two">
  <joint name="shoulder_pan_joint" type="revolute">
    <limit lower="-3.1" upper="3.1" velocity="2.0" effort="150"/>
  </joint>
  <joint name="wrist_joint" type="continuous"><limit velocity="3.0" effort="20"/></joint>
  <joint name="finger_joint" type="prismatic">
    <limit lower="0.0" upper="0.04" velocity="0.1" effort="20"/>
  </joint>
  <joint name="tool0" type="fixed"/>
</robot>"""
MOVEIT = {
    "joint_limits": {
        name: {
            "has_acceleration_limits": True, "max_acceleration": 5.0, "has_jerk_limits": True,
            "max_jerk": 50.0, "has_velocity_limits": name == "wrist_joint", "max_velocity": 1.5,
        }
        for name in ("shoulder_pan_joint", "wrist_joint", "finger_joint", "of_another_arm")
    }
}  # fmt: skip
ROBOT = {
    "urdf": "two.urdf", "joint_limits": "joint_limits.yaml", "control_hz": 10.0,
    "channels": [
        {"name": "shoulder_pan_joint"},
        {"name": "wrist_joint", "low": -3, "high": 3},
        {"name": "finger_joint", "jerk": 20.0},
    ],
    "gripper": {"channel": "finger_joint", "open": 0.04, "closed": 0.0},
    "home": [0.0, 0.5, 0.02], "cameras": [{"name": "front"}],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "two.urdf").write_text(URDF)
    (tmp_path / "joint_limits.yaml").write_text(yaml.safe_dump(MOVEIT))
    return tmp_path


def written(folder, **changes):
    content = {k: v for k, v in {**ROBOT, **changes}.items() if v is not None}
    (folder / "two.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "two.yaml")


def test_limits_come_from_the_urdf_and_moveit_and_the_file_wins(folder):
    spec = robot_file.load(written(folder))
    assert spec.name == "two"
    assert spec.names == ("shoulder_pan_joint", "wrist_joint", "finger_joint")
    assert spec.low == (-3.1, -3.0, 0.0)
    assert [c.velocity for c in spec.channels] == [2.0, 1.5, 0.1]
    assert [c.acceleration for c in spec.channels] == [5.0, 5.0, 5.0]
    assert [c.jerk for c in spec.channels] == [50.0, 50.0, 20.0]
    assert [c.unit for c in spec.channels] == ["rad", "rad", "m"]
    assert spec.cameras[0].name == "front"


def test_a_name_is_that_of_a_robot_that_comes_along():
    assert robot_file.load("so101") is registry.load("vla.robots", "so101").SPEC


def test_the_bridge_takes_the_file_and_moveits_limits(folder):
    name = written(folder)
    spec = robot_file.load(name)
    allowed = limits.read(folder / "joint_limits.yaml", spec)
    np.testing.assert_array_equal(allowed.acceleration, [5.0, 5.0, 5.0])
    np.testing.assert_array_equal(allowed.jerk, [50.0, 50.0, 20.0])
    arm = driver.read("ur_robotiq", spec)
    assert [one.joints for one in arm.controllers] == [spec.names[:2], ("finger_joint",)]
    use = graph.Arm(
        robot=name, policy="unix:/tmp/p", limits=str(folder / "joint_limits.yaml"), driver="xarm6"
    )
    nodes = graph.arm(use)
    assert {node.parameters["robot"] for node in nodes} == {name}
    assert nodes[0].parameters["driver"].endswith("xarm6.yaml")


def test_numbers_that_are_none_are_named_with_their_joint(folder):
    (folder / "two.urdf").write_text(URDF.replace('lower="-3.1"', 'lower="${low}"'))
    with pytest.raises(ValueError, match=r"two\.urdf: lower of joint 'shoulder_pan_joint' is '\${"):
        robot_file.load(written(folder))


def test_a_workspace_beside_moveits_limits_is_kept_and_joints_beside_them_are_refused(folder):
    spec = robot_file.load(written(folder))
    path = folder / "both.yaml"
    path.write_text(yaml.safe_dump({**MOVEIT, "workspace": {"table": 0.0}}))
    assert limits.read(path, spec).workspace.table == 0.0
    path.write_text(yaml.safe_dump({**MOVEIT, "joints": {}}))
    with pytest.raises(ValueError, match="got joints and joint_limits; give one of them"):
        limits.read(path, spec)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"urdf": None}, "joint 'shoulder_pan_joint' has no unit; give it there, or a urdf"),
        ({"joint_limits": None}, "joint 'shoulder_pan_joint' has no acceleration; give it"),
        ({"urdf": "none.urdf"}, "none.urdf: no URDF there; give its path beside"),
        ({"urdf": "joint_limits.yaml"}, "no URDF (syntax error"),
        ({"joint_limits": "none.yaml"}, "none.yaml: no file there"),
        ({"channels": "wrist_joint"}, "channels is 'wrist_joint', expected a list of joints"),
        ({"channels": [{"name": "wrist_joint"}]}, "joint 'wrist_joint' has no low"),
        ({"home": [0.0]}, "home has 1 values for 3 channels"),
        ({"home": [0.0, 9.0, 0.0]}, "home of joint 'wrist_joint' is 9.0, outside its range"),
        ({"gripper": {"channel": "hand", "open": 1.0, "closed": 0.0}}, "no channel 'hand'"),
        ({"gripper": None}, "gripper"),
        ({"colour": "red"}, "colour"),
        ({"control_hz": 0.0}, "control_hz is 0.0, expected above 0 to 1000"),
        ({"control_hz": float("nan")}, "control_hz is nan"),
        ({"cameras": []}, "expected at least one camera"),
        ({"cameras": ["front"]}, "cameras is ['front'], expected a list with names"),
        ({"cameras": None}, "cameras is None"),
        ({"urdf": ["two.urdf"]}, "a value is of another type than expected"),
        ({"gripper": {"channel": "finger_joint", "open": 4.0, "closed": 0.0}}, "outside its range"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(folder, changes, said):
    with pytest.raises(ValueError, match=r"two\.yaml|none\.|joint_limits") as error:
        robot_file.load(written(folder, **changes))
    assert said in str(error.value)
