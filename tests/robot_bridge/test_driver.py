"""Driver files: what they say of a robot's joints, and what is refused."""

from types import SimpleNamespace as Message

import numpy as np
import pytest
import yaml

from robot_bridge.launching import driver, package_files
from vla.contracts import registry

SO101 = registry.load("vla.robots", "so101").SPEC
PANDA = registry.load("vla.robots", "panda").SPEC
SHIPPED = sorted(p.stem for p in (package_files.folder() / "launch" / "drivers").glob("*.yaml"))
STATE = {"topic": "running", "type": "std_msgs/msg/Bool", "field": "data", "expected": [True]}


def parse(**content):
    return driver.parse({"controllers": [{"type": "trajectory"}], **content}, SO101, "my.yaml")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_driver_that_comes_along_has_every_joint_once(name):
    robot = PANDA if name == "fr3" else SO101
    arm = driver.read(name, robot)
    joints = [joint for controller in arm.controllers for joint in controller.joints]
    assert sorted(joints) == sorted(robot.names)
    assert len(set(arm.names)) == len(robot.names)


def test_names_have_a_prefix_and_the_gripper_a_controller_of_its_own():
    arm = parse(
        joint_prefix="left_", joint_names={"gripper": "finger_joint"},
        controllers=[
            {"type": "trajectory", "topic": "arm/joint_trajectory"},
            {"type": "forward", "topic": "hand/commands", "joints": "gripper"},
        ],
    )  # fmt: skip
    assert arm.names == (
        "left_shoulder_pan", "left_shoulder_lift", "left_elbow_flex", "left_wrist_flex",
        "left_wrist_roll", "left_finger_joint",
    )  # fmt: skip
    assert [one.joints for one in arm.controllers] == [SO101.names[:5], ("gripper",)]
    assert arm.has_trajectory


def test_gripper_stands_for_the_robots_gripper():
    content = {"controllers": [{"type": "trajectory"}, {"type": "forward", "joints": "gripper"}]}
    assert driver.parse(content, PANDA, "x").controllers[1].joints == ("finger_joint",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"controller": []}, "my.yaml: unknown entry 'controller'; known are joint_prefix"),
        ({"controllers": {}}, "my.yaml: controllers is {}, expected a list"),
        ({"controllers": []}, "my.yaml: no controller has joint 'shoulder_pan'"),
        ({"controllers": ["trajectory"]}, "controllers[0]: got 'trajectory', expected entries"),
        ({"controllers": [{"type": "position"}]}, "controllers[0]: type is 'position', expected"),
        (
            {"controllers": [{"type": "trajectory", "joints": ["shoulder_pan"]}]},
            "my.yaml: no controller has joint 'shoulder_lift'; each joint needs one",
        ),
        (
            {"controllers": [{"type": "trajectory"}, {"type": "forward"}]},
            "my.yaml: two controllers have joint 'shoulder_pan'",
        ),
        (
            {"controllers": [{"type": "trajectory"}, {"type": "forward", "joints": ["hand"]}]},
            "controllers[1]: joints: unknown joint 'hand'; so101 has shoulder_pan",
        ),
        (
            {"controllers": [{"type": "gripper_command"}]},
            "controllers[0]: got 6 joints, gripper_command expects one joint",
        ),
        ({"joint_prefix": 7}, "my.yaml: joint_prefix is 7, expected a text"),
        ({"joint_names": {"hand": "x"}}, "joint_names: unknown joint 'hand'"),
        ({"joint_names": {"gripper": "wrist_roll"}}, "two joints have the driver's name"),
        ({"states": [{**STATE, "type": "Bool"}]}, "states[0]: type is 'Bool', expected such as"),
        ({"states": [{**STATE, "field": 1}]}, "states[0]: field is 1, expected a text"),
        ({"states": [{**STATE, "range": [0]}]}, "states[0]: range is [0], expected [lowest"),
        ({"states": [{**STATE, "range": [2, 1]}]}, "range is [2, 1], expected the lowest value"),
        ({"states": [{**STATE, "range": [-np.inf, np.inf]}]}, "expected [lowest, highest]"),
        ({"states": [{**STATE, "timeout_s": np.nan}]}, "got nan, expected a number from 0 on"),
        ({"joint_names": {"gripper": None}}, "joint_names of gripper is None, expected a text"),
        (
            {
                "controllers": [
                    {"type": "trajectory", "topic": "a"},
                    {"type": "forward", "topic": "a", "joints": "gripper"},
                ]
            },
            "two controllers have the driver's name 'a'",
        ),
        (
            {"controllers": [{"type": "trajectory", "max_effort": 10**30}]},
            "expected a number from 0 on",
        ),
        (
            {"states": [{k: v for k, v in STATE.items() if k != "expected"}]},
            "states[0]: got neither expected nor range",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(content, said):
    with pytest.raises(ValueError, match=r"my\.yaml") as error:
        parse(**content)
    assert said in str(error.value)


def test_a_missing_file_and_one_that_is_no_yaml_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nothing\.yaml; give the path of one, or a"):
        driver.read("nothing", SO101)
    (tmp_path / "a.yaml").write_text("controllers: [")
    with pytest.raises(ValueError, match=r"a\.yaml: no YAML"):
        driver.read(str(tmp_path / "a.yaml"), SO101)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"controllers": [{"type": "trajectory"}]}))
    assert driver.read(str(tmp_path / "a.yaml"), SO101).names == SO101.names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x", "no YAML (it has an alias"),
        ("[" * 5000, "x.yaml: "),
        ("a: " + "b" * 70_000, "expected at most 65536"),
        ("- 1", "got [1], expected entries"),
    ],
)
def test_hostile_text_of_a_bag_is_refused(text, said):
    with pytest.raises(ValueError, match=r"x\.yaml") as error:
        driver.of_text(text, SO101, "x.yaml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (STATE, Message(data=True), ""),
        (STATE, Message(data=False), "running: data is False, expected True"),
        (STATE, Message(status=1), "running: no field data"),
        ({**STATE, "field": "a.b", "expected": [1, 2]}, Message(a=Message(b=2)), ""),
        ({**STATE, "expected": [], "range": [99, 101]}, Message(data=100.0), ""),
        (
            {**STATE, "expected": [], "range": [99, 101]}, Message(data=40.0),
            "running: data is 40.0, expected 99 to 101",
        ),
        (
            {**STATE, "expected": [], "range": [99, 101]}, Message(data=np.nan),
            "running: data is nan, expected 99 to 101",
        ),
        (
            {**STATE, "field": "controllers.name=arm.state", "expected": ["active"]},
            Message(controllers=[Message(name="arm", state="inactive")]),
            "running: controllers.name=arm.state is inactive, expected active",
        ),
        (
            {**STATE, "field": "controllers.name=arm.state", "expected": ["active"]},
            Message(controllers=[]), "running: no element with name arm",
        ),
    ],
)  # fmt: skip
def test_a_state_says_what_keeps_the_arm_from_moving(state, message, said):
    (row,) = parse(states=[state]).states
    assert row.fault(message) == said
