"""The driver of a simulated arm: controllers behind their topics, joint states, driver states."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from robot_bridge.launching import driver
from robot_bridge.nodes import common, sim_sensors
from robot_bridge.nodes.controllers import message_type
from robot_bridge.nodes.sim_gripper import SimulatedGripper
from robot_bridge.sensing import convert
from robot_bridge.sim_arm.actuator import FORWARD, TRAJECTORY, Actuator, Controller, InputLog
from robot_bridge.sim_arm.settings import Settings
from robot_bridge.sim_arm.trajectory_controller import Trajectory
from vla.contracts.specs import RobotSpec

STATES_S = 0.1
"""Period in s of the driver's states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """Joints of one controller."""

    places: np.ndarray
    """Their places in the robot's order."""
    names: tuple[str, ...]
    """The driver's names, in the controller's order."""
    controller: Controller
    gripper: SimulatedGripper | None = None
    """The action by which it is commanded; None: a topic."""


class SimulatedDriver:
    """Controllers with their topics, and what a driver publishes.

    Args:
        node: Node with the topics.
        robot: The arm.
        settings: Of the simulated arm.
        rng: Draws losses and jitter of commands.

    Raises:
        ValueError: the driver file is wrong, or has what cannot be simulated.
    """

    def __init__(
        self, node: Any, robot: RobotSpec, settings: Settings, rng: np.random.Generator
    ) -> None:
        self.node, self.robot, self.settings = node, robot, settings
        self.arm = driver.read(settings.driver, robot, joints=settings.joints)
        self.counts: Counter[str] = Counter(refused=0)
        self.inputs = InputLog(robot.names)
        self.groups = [
            self._group(one, stream)
            for one, stream in zip(
                self.arm.controllers, rng.spawn(len(self.arm.controllers)), strict=True
            )
        ]
        self._publishers = [
            (state, node.create_publisher(message_type(state.type), state.topic, common.LATCHED))
            for state in self.arm.states
        ]
        if self._publishers:
            node.declare_parameter("driver_faults", [""])
            common.create_timer(node, STATES_S, self._publish_states)

    def _group(self, one: driver.Controller, rng: np.random.Generator) -> _Group:
        s, places = self.settings, np.array([self.arm.joints.index(name) for name in one.joints])
        actuator = Actuator(
            np.array(self.robot.home)[places], s.lag_s,
            interpolate_from_desired_state=s.interpolate_from_desired_state,
        )  # fmt: skip
        names = self.arm.names_of(one.joints)
        controller, gripper = Controller(actuator, s.commands(), rng), None
        if not one.is_topic:
            (channel,) = (self.robot.channels[place] for place in places)
            travel, velocity = channel.high - channel.low, channel.velocity
            gripper = SimulatedGripper(self.node, one, controller, travel, velocity)
        return _Group(places=places, names=names, controller=controller, gripper=gripper)

    def connect(self) -> None:
        """Subscribe to the commands of every controller."""
        if self.settings.driver:
            rows = [
                (group, str(one.type), one.topic)
                for group, one in zip(self.groups, self.arm.controllers, strict=True)
                if one.is_topic
            ]
        else:
            wanted = self.settings.interface
            kinds = [kind for kind in ("trajectory", "forward") if wanted in ("both", kind)]
            rows = [(self.groups[0], kind, driver.TOPICS[kind]) for kind in kinds]
        for group, kind, topic in rows:
            receive = self._trajectory if kind == "trajectory" else self._forward
            take = partial(self._take, receive, group)
            self.node.create_subscription(
                message_type(driver.TYPES[kind]), topic, take, common.COMMANDS
            )

    # --- motion -------------------------------------------------------------------------------

    def reset(self, now_s: float) -> None:
        """Drop all commands, and hold the home pose."""
        for group in self.groups:
            home = np.array(self.robot.home)[group.places]
            group.controller.reset(home, now_s)
            if group.gripper is not None:
                group.gripper.reset(home[0])

    def advance(self, begin_s: float, end_s: float) -> np.ndarray:
        """Apply commands that arrived before a tick; return the motors' output f64 [u]."""
        target = np.empty(len(self.robot.names))
        for group in self.groups:
            output = group.controller.advance(begin_s, end_s)
            target[group.places] = output
            if group.gripper is not None:
                group.gripper.advance(end_s, output[0])
        return target

    def tally(self) -> Counter[str]:
        """Return the numbers of commands by what became of them."""
        counts = Counter(self.counts)
        for group in self.groups:
            counts.update(group.controller.counts)
        return counts

    # --- what it publishes --------------------------------------------------------------------

    def joint_states(self, stamp: Any, position: np.ndarray, velocity: np.ndarray) -> Iterator[Any]:
        """Yield the joint states of every controller, from f64 [u] in the robot's order."""
        for group in self.groups:
            values = position[group.places], velocity[group.places]
            yield sim_sensors.joint_state(list(group.names), stamp, *values)

    def _publish_states(self) -> None:
        """Publish states with which the arm may move, except those of parameter driver_faults."""
        faults = self.node.get_parameter("driver_faults").value
        for state, publisher in self._publishers:
            message = message_type(state.type)()
            *path, last = state.field.split(".")
            part = message
            for name in path:
                part = getattr(part, name)
            setattr(part, last, _value(state, type(getattr(part, last)), state.topic in faults))
            self.node.publish(publisher, message)

    # --- commands -----------------------------------------------------------------------------

    def _take(self, receive: Any, group: _Group, message: Any) -> None:
        """Take a command that came now; a malformed one is counted and dropped."""
        try:
            receive(time.monotonic(), group, message)
        except ValueError as error:
            self.counts["refused"] += 1
            self.node.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _trajectory(self, moment_s: float, group: _Group, message: JointTrajectory) -> None:
        """Take a trajectory, joints by name."""
        times_s, points = convert.trajectory(
            message.joint_names, [point.positions for point in message.points],
            [common.seconds(point.time_from_start) for point in message.points],
            group.names, "joint_trajectory",
        )  # fmt: skip
        now_s, stamp_s = self.node.now_s(moment_s), common.seconds(message.header.stamp)
        trajectory = Trajectory(
            times_s=times_s, positions=points,
            velocities=_derivatives(message, "velocities", group.names),
            accelerations=_derivatives(message, "accelerations", group.names),
            stamp_s=now_s + stamp_s - common.seconds(self.node.stamp(now_s)) if stamp_s else None,
        )  # fmt: skip
        self._log(moment_s, TRAJECTORY, group, times_s, points)
        group.controller.receive(now_s, trajectory)

    def _forward(self, moment_s: float, group: _Group, message: Float64MultiArray) -> None:
        """Take positions in the controller's order."""
        points = convert.by_name(group.names, message.data, group.names, "commands")
        self._log(moment_s, FORWARD, group, np.zeros(1), points[None])
        group.controller.receive(self.node.now_s(moment_s), points)

    def _log(
        self, moment_s: float, source: int, group: _Group, times_s: np.ndarray, points: np.ndarray
    ) -> None:
        """Log a command; joints of other controllers are NaN."""
        rows = np.full((len(points), len(self.robot.names)), np.nan)
        rows[:, group.places] = points
        self.inputs.append(moment_s, source, times_s, rows)

    def write_log(self) -> None:
        """Write the received commands."""
        self.inputs.write(Path(self.settings.log_commands))


def _derivatives(message: JointTrajectory, name: str, names: tuple[str, ...]) -> np.ndarray | None:
    """Return the velocities or accelerations of a trajectory, None if its points have none."""
    rows = [getattr(point, name) for point in message.points]
    if not any(rows):
        return None
    times_s = np.arange(len(rows)).tolist()
    return convert.trajectory(message.joint_names, rows, times_s, names, name)[1]


def _value(state: driver.DriverState, kind: type, is_wrong: bool) -> Any:
    """Return a value with which the arm may move, or one with which it may not."""
    right = state.expected[0] if state.expected else (state.low + state.high) / 2
    if not is_wrong:
        return kind(right)
    if kind is bool:
        return not right
    if kind is str:
        return f"not {right}"
    return kind(max([*state.expected, state.high if np.isfinite(state.high) else 0]) + 1)
