"""What each kind of controller gets; the gripper's action is a stand-in, as control_msgs is not on
PyPI.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robot_bridge.launching import driver
from robot_bridge.motion.spline import Knots
from robot_bridge.nodes import controllers
from vla.contracts import registry

pytestmark = pytest.mark.ros
SO101 = registry.load("vla.robots", "so101").SPEC
TRAVEL = np.full(6, 1.0)
PERIOD_NS = 10_000_000


class Node:
    """A node as far as outputs need one."""

    def __init__(self):
        self.sent = []

    def create_publisher(self, kind, topic, _):
        return SimpleNamespace(
            publish=lambda message: self.sent.append((topic, message)), topic_name=topic
        )

    def count_publishers(self, topic):
        return 1


def command(rest, stamp_ns=10**9):
    """A trajectory of three points, all joints at -1, then 0, then somewhere."""
    rows = np.array([np.full(6, -1.0), np.zeros(6), np.full(6, rest)])
    return controllers.Command(Knots(rows, rows, rows), stamp_ns, PERIOD_NS)


def outputs(node, gripper, monkeypatch, goals=None):
    if goals is not None:

        class Client:
            def __init__(self, _, kind, topic):
                self.topic = topic

            def send_goal_async(self, goal):
                goals.append((self.topic, goal))

        module = ModuleType("control_msgs.action")
        for name in ("GripperCommand", "ParallelGripperCommand"):
            make = lambda: SimpleNamespace(command=SimpleNamespace())  # noqa: E731
            setattr(module, name, SimpleNamespace(Goal=make))
        monkeypatch.setitem(sys.modules, "control_msgs", ModuleType("control_msgs"))
        monkeypatch.setitem(sys.modules, "control_msgs.action", module)
        monkeypatch.setattr(controllers, "ActionClient", Client)
    content = {
        "joint_prefix": "left_",
        "controllers": [{"type": "trajectory"}, {"joints": "gripper", **gripper}],
    }
    return controllers.Outputs(node, driver.parse(content, SO101, "x"), TRAVEL)


def test_each_controller_gets_its_joints_under_the_drivers_names(monkeypatch):
    node = Node()
    out = outputs(node, {"type": "forward", "topic": "hand"}, monkeypatch)
    out.send(out.messages(command(0.5)))
    (topic, trajectory), (hand, pose) = node.sent
    assert topic == "joint_trajectory_controller/joint_trajectory"
    assert trajectory.joint_names == [f"left_{name}" for name in SO101.names[:5]]
    assert [point.positions[0] for point in trajectory.points] == [-1.0, 0.0, 0.5]
    assert [p.time_from_start.nanosec for p in trajectory.points] == [0, 10**7, 2 * 10**7]
    assert trajectory.header.stamp.sec == 1
    assert (hand, list(pose.data)) == ("hand", [0.0])  # where the trajectory is now


@pytest.mark.parametrize("kind", ["gripper_command", "parallel_gripper_command"])
def test_a_gripper_gets_a_goal_when_its_target_changes(kind, monkeypatch):
    goals = []
    out = outputs(
        Node(), {"type": kind, "topic": "grip", "max_effort": 20.0}, monkeypatch, goals
    )  # fmt: skip
    now_ns = 10**9
    for rest, after_ms in ((0.5, 0), (0.505, 200), (0.6, 200), (0.7, 10), (0.7, 100)):
        now_ns += after_ms * 10**6
        out.send(out.messages(command(rest, now_ns)))
    commands = [goal.command for topic, goal in goals if topic == "grip"]
    if kind == "gripper_command":
        assert [c.position for c in commands] == [0.5, 0.6, 0.7]
        assert {c.max_effort for c in commands} == {20.0}
    else:
        assert [c.position for c in commands] == [[0.5], [0.6], [0.7]]
        assert commands[0].name == ["left_gripper"]
        assert commands[0].effort == [20.0]


def test_a_type_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "control_msgs", None)
    monkeypatch.setitem(sys.modules, "control_msgs.action", None)
    with pytest.raises(ValueError, match=r"GripperCommand: no such type here .*control-msgs, or"):
        outputs(Node(), {"type": "gripper_command", "topic": "grip"}, monkeypatch)
