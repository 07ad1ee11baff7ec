"""Sends the gate's commands to a driver's controllers: trajectories, poses, goals of a gripper."""

import importlib
import time
from array import array
from typing import Any, NamedTuple

import numpy as np
from rclpy.action import ActionClient
from rclpy.duration import Duration
from rclpy.time import Time
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.launching.driver import TYPES, Controller, Driver
from robot_bridge.motion.spline import Knots
from robot_bridge.nodes import common

GOAL_CHANGE, GOAL_PERIOD_S = 0.01, 0.1
"""A gripper gets a new goal if it changes by this share of its travel, at most once per period."""


def message_type(name: str) -> Any:
    """Return the class of a message or an action, such as std_msgs/msg/Bool.

    Raises:
        ValueError: its package is not installed, or has none of that name.
    """
    try:
        package, kind, word = name.split("/")
        return getattr(importlib.import_module(f"{package}.{kind}"), word)
    except (ImportError, AttributeError, ValueError) as error:
        package = name.split("/")[0]
        raise ValueError(
            f"{name}: no such type here ({error}); install ros-DISTRO-{package.replace('_', '-')}, "
            "or leave out what needs it"
        ) from error


class Command(NamedTuple):
    """What is decided at a tick."""

    knots: Knots
    """The trajectory from a tick ago to a standstill."""
    stamp_ns: int
    """ROS time at which it begins."""
    period_ns: int
    """Time between its points."""


class Outputs:
    """Publishers of all controllers of a driver."""

    def __init__(self, node: Any, driver: Driver, travel: np.ndarray) -> None:
        """Create them; `travel` f64 [u] is the width of each joint's range.

        Raises:
            ValueError: the type of a command is not installed.
        """
        self.driver = driver
        self.outputs = [_output(node, driver, one, travel) for one in driver.controllers]

    def messages(self, command: Command | np.ndarray) -> list[tuple[Any, Any]]:
        """Return outputs with the message of each, for `send`; a pose f64 [u] counts at once."""
        return [(output, output.message(command)) for output in self.outputs]

    @staticmethod
    def send(messages: list[tuple[Any, Any]], *, final: bool = False) -> None:
        """Send messages of `messages`; `final` ones are the last before the arm rests."""
        for output, message in messages:
            output.send(message, final)

    def forget(self) -> None:
        """Forget what grippers were told: somebody may have moved them since."""
        for output in self.outputs:
            output.forget()

    def rival(self) -> str:
        """Return a topic on which another node commands as well, "" if there is none."""
        return next((topic for output in self.outputs if (topic := output.rival())), "")


class _Topic:
    """A controller that is commanded by messages."""

    def __init__(self, node: Any, driver: Driver, controller: Controller) -> None:
        self.node = node
        self.names = list(driver.names_of(controller.joints))
        self.places = [driver.joints.index(name) for name in controller.joints]
        kind = message_type(TYPES[controller.type])
        self.publisher = node.create_publisher(kind, controller.topic, common.COMMANDS)

    def send(self, message: Any, final: bool) -> None:
        self.publisher.publish(message)

    def forget(self) -> None:
        pass  # every message says all

    def rival(self) -> str:
        topic: str = self.publisher.topic_name
        return topic if self.node.count_publishers(topic) > 1 else ""


class _Trajectory(_Topic):
    def message(self, command: Command | np.ndarray) -> JointTrajectory:
        assert isinstance(command, Command)
        message = JointTrajectory(joint_names=self.names)
        # It begins a tick ago, so the controller never has to find a way to it.
        message.header.stamp = Time(nanoseconds=command.stamp_ns).to_msg()
        columns = [rows[:, self.places] for rows in command.knots]
        message.points = [
            JointTrajectoryPoint(
                positions=array("d", p.tobytes()), velocities=array("d", v.tobytes()),
                accelerations=array("d", a.tobytes()),
                time_from_start=Duration(nanoseconds=i * command.period_ns).to_msg(),
            )
            for i, (p, v, a) in enumerate(zip(*columns, strict=True))
        ]  # fmt: skip
        return message


class _Forward(_Topic):
    def message(self, command: Command | np.ndarray) -> Float64MultiArray:
        return Float64MultiArray(data=_now(command)[self.places].tolist())


class _Gripper:
    """A gripper that is commanded by goals of an action, whose results are not awaited."""

    def __init__(
        self, node: Any, driver: Driver, controller: Controller, travel: np.ndarray
    ) -> None:
        self.controller = controller
        self.names = list(driver.names_of(controller.joints))
        self.place = driver.joints.index(controller.joints[0])
        self.change = GOAL_CHANGE * float(travel[self.place])
        kind = message_type(TYPES[controller.type])
        self.goal_type = kind.Goal
        self.client = ActionClient(node, kind, controller.topic)
        self.forget()

    def rival(self) -> str:
        return ""  # an action server takes goals of anybody; the last one counts

    def forget(self) -> None:
        self.goal, self.sent_s = np.nan, -np.inf

    def message(self, command: Command | np.ndarray) -> float:
        """Return where the gripper comes to rest: a goal is no trajectory, it moves by itself."""
        rows = command.knots.positions if isinstance(command, Command) else command[None]
        return float(rows[-1, self.place])

    def send(self, wanted: float, final: bool) -> None:
        """Send a goal, unless the gripper has about the same or got one a moment ago."""
        now_s = time.monotonic()
        if abs(wanted - self.goal) < self.change and not (final and wanted != self.goal):
            return
        if now_s - self.sent_s < GOAL_PERIOD_S and not final:
            return
        if not self.client.server_is_ready():
            return  # it is tried again at the next tick
        self.goal, self.sent_s = wanted, now_s
        self.client.send_goal_async(self._goal(wanted)).add_done_callback(self._answered)

    def _goal(self, wanted: float) -> Any:
        effort, goal = self.controller.max_effort, self.goal_type()
        if self.controller.type == "gripper_command":
            goal.command.position, goal.command.max_effort = wanted, effort
        else:
            goal.command.name, goal.command.position = self.names, [wanted]
            goal.command.effort = [effort] if effort else []
        return goal

    def _answered(self, future: Any) -> None:
        if not future.result().accepted:
            self.goal = np.nan  # it is sent again


def _output(node: Any, driver: Driver, controller: Controller, travel: np.ndarray) -> Any:
    if controller.type == "trajectory":
        return _Trajectory(node, driver, controller)
    if controller.type == "forward":
        return _Forward(node, driver, controller)
    return _Gripper(node, driver, controller, travel)


def _now(command: Command | np.ndarray) -> np.ndarray:
    """Return the pose f64 [u] that is due now: the second point of a trajectory."""
    return command.knots.positions[1] if isinstance(command, Command) else command
