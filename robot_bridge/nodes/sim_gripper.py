"""A simulated gripper behind an action of control_msgs, as the drivers of grippers offer it."""

import threading
import time
from typing import Any

import numpy as np
from rclpy.action import ActionServer, CancelResponse
from rclpy.task import Future

from robot_bridge.launching import driver
from robot_bridge.nodes.controllers import message_type
from robot_bridge.sim_arm.actuator import Controller
from robot_bridge.sim_arm.trajectory_controller import Trajectory

TOLERANCE = 0.01
"""Share of the travel within which a goal is reached."""
GRACE_S = 0.5
"""Time in s after which a gripper that does not reach its goal is stalled."""


class SimulatedGripper:
    """Server of one gripper's action. A new goal takes the place of the one before.

    Args:
        node: Node with the action.
        one: The gripper's controller in the driver file.
        controller: What moves the gripper.
        travel: Width of its range.
        velocity: Its speed, per second.

    Raises:
        ValueError: control_msgs is not installed.
    """

    def __init__(
        self, node: Any, one: driver.Controller, controller: Controller, travel: float,
        velocity: float,
    ) -> None:  # fmt: skip
        self.node, self.type, self.controller = node, one.type, controller
        self.travel, self.velocity = travel, velocity
        self.lock = threading.Lock()
        self.position, self.wanted, self.due_s = np.nan, np.nan, -np.inf
        self.future: Future | None = None
        kind = message_type(driver.TYPES[one.type])
        self.result_type = kind.Result
        self.server = ActionServer(
            node, kind, one.topic, self._execute, cancel_callback=lambda _: CancelResponse.ACCEPT
        )

    def reset(self, position: float) -> None:
        """Drop the goal."""
        self._end("aborted")
        self.position = position

    def advance(self, now_s: float, position: float) -> None:
        """Take the gripper's position at a tick; a goal that is reached or stalled ends."""
        self.position = position
        if abs(position - self.wanted) <= TOLERANCE * self.travel:
            self._end("reached")
        elif now_s > self.due_s + GRACE_S:
            self._end("stalled")

    def _end(self, how: str) -> None:
        with self.lock:
            future, self.future, self.wanted = self.future, None, np.nan
        if future is not None:
            future.set_result(how)

    async def _execute(self, handle: Any) -> Any:
        command, result = handle.request.command, self.result_type()
        is_simple = self.type == "gripper_command"
        wanted = float(command.position if is_simple else command.position[0])
        self._end("aborted")
        if not np.isfinite(wanted):
            handle.abort()
            return result
        # It moves by itself, at its own speed, from where it is.
        duration_s = abs(wanted - self.position) / self.velocity
        now_s = self.node.now_s(time.monotonic())
        future = Future(executor=self.node.executor)
        with self.lock:
            self.future, self.wanted, self.due_s = future, wanted, now_s + duration_s
        times_s, positions = np.array([max(duration_s, 1e-3)]), np.array([[wanted]])
        self.controller.receive(now_s, Trajectory(times_s=times_s, positions=positions))
        how = await future
        result.reached_goal, result.stalled = how == "reached", how == "stalled"
        if is_simple:
            result.position = self.position
        else:
            result.state.name, result.state.position = list(command.name), [self.position]
        if how == "reached":
            handle.succeed()
        else:
            handle.abort()
        return result
