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


ready, accepts = [True], [True]
"""Whether the stand-in of a gripper is there, and takes goals."""


@pytest.fixture
def clock(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(controllers.time, "monotonic", lambda: now_s[0])
    ready[0] = accepts[0] = True
    return now_s


def outputs(node, gripper, monkeypatch, goals=None, arm="trajectory"):
    if goals is not None:

        class Client:
            def __init__(self, _, kind, topic):
                self.topic = topic

            def server_is_ready(self):
                return ready[0]

            def send_goal_async(self, goal):
                goals.append((self.topic, goal))
                handle = SimpleNamespace(accepted=accepts[0])
                future = SimpleNamespace(result=lambda: handle)
                return SimpleNamespace(add_done_callback=lambda act: act(future))

        module = ModuleType("control_msgs.action")
        for name in ("GripperCommand", "ParallelGripperCommand"):
            make = lambda: SimpleNamespace(command=SimpleNamespace())  # noqa: E731
            setattr(module, name, SimpleNamespace(Goal=make))
        monkeypatch.setitem(sys.modules, "control_msgs", ModuleType("control_msgs"))
        monkeypatch.setitem(sys.modules, "control_msgs.action", module)
        monkeypatch.setattr(controllers, "ActionClient", Client)
    content = {
        "joint_prefix": "left_",
        "controllers": [{"type": arm}, {"joints": "gripper", **gripper}],
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


def gripper(monkeypatch, kind="gripper_command", arm="trajectory"):
    goals = []
    given = {"type": kind, "topic": "grip", "max_effort": 20.0}
    return outputs(Node(), given, monkeypatch, goals, arm), goals


def told(goals):
    positions = [goal.command.position for _, goal in goals]
    return [p[0] if isinstance(p, list) else p for p in positions]


@pytest.mark.parametrize("kind", ["gripper_command", "parallel_gripper_command"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_gripper_gets_a_goal_when_its_target_changes(kind, ahead, clock, monkeypatch):
    out, goals = gripper(monkeypatch, kind, "trajectory" if ahead else "forward")
    for rest, after_s in ((0.5, 0), (0.505, 0.2), (0.6, 0.2), (0.7, 0.01), (0.7, 0.1)):
        clock[0] += after_s
        out.send(out.messages(command(rest) if ahead else np.full(6, rest)))
    assert told(goals) == [0.5, 0.6, 0.7]
    last = goals[-1][1].command
    if kind == "gripper_command":
        assert last.max_effort == 20.0
    else:
        assert (last.name, last.effort) == (["left_gripper"], [20.0])


def test_no_goal_is_lost(clock, monkeypatch):
    out, goals = gripper(monkeypatch)
    out.send(out.messages(command(0.0)))
    clock[0] += 1.0
    out.messages(command(0.5))  # made and not sent, as in a tick that was too late
    out.send(out.messages(command(0.5)))
    clock[0] += 0.01
    out.send(out.messages(command(0.2)), final=True)  # at once: no tick follows
    assert told(goals) == [0.0, 0.5, 0.2]
    ready[0] = False
    clock[0] += 1.0
    out.send(out.messages(command(0.8)))
    ready[0], accepts[0] = True, False
    out.send(out.messages(command(0.8)))  # it refuses
    accepts[0] = True
    clock[0] += 0.2
    out.send(out.messages(command(0.8)))
    assert told(goals)[3:] == [0.8, 0.8]
    clock[0] += 0.2
    out.send(out.messages(command(0.8)))
    out.forget()  # a new series: somebody may have moved it
    out.send(out.messages(command(0.8)))
    assert told(goals)[5:] == [0.8]


def test_a_type_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "control_msgs", None)
    monkeypatch.setitem(sys.modules, "control_msgs.action", None)
    with pytest.raises(ValueError, match=r"GripperCommand: no such type here .*control-msgs, or"):
        outputs(Node(), {"type": "gripper_command", "topic": "grip"}, monkeypatch)
