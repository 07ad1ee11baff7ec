"""The action `~/execute_instruction` of the policy node: an instruction with an end.

It speaks on topic `instruction` as anybody may, so the monitor and the recorder hear the same. The
reward model's monitor says when the instruction is done; without one a goal ends by its time limit.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray
from mneme_vla_interfaces.action import ExecuteInstruction
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.duration import Duration
from rclpy.task import Future
from std_msgs.msg import Header

from robot_bridge.nodes import common
from robot_bridge.policy.execution import SILENT_S, Error, Execution, number

PERIOD_S = 0.1
"""Period of feedback."""
BEGUN_S = 2.0
"""Time in s after which a goal that was accepted and not executed is forgotten."""
MOST_CHARACTERS = 1000
"""Longest instruction."""


class InstructionAction:
    """Server of the action; one goal at a time, others are rejected.

    Args:
        node: The policy node.
        limit_s: Time limit of a goal that names none.
        is_active: Whether the policy runs.
        hold: Called before an instruction ends; holds the arm until the next.
    """

    def __init__(
        self, node: Any, limit_s: float, is_active: Callable[[], bool], hold: Callable[[], None]
    ) -> None:
        self.node, self.limit_s, self.is_active, self.hold = node, limit_s, is_active, hold
        self.lock = threading.RLock()
        self.goal: Execution | None = None
        self.handle: Any = None
        self.done = Future()
        self.safety: tuple[dict[str, str], float] = {}, -np.inf
        """Last status of the safety node, and when it came."""
        self.scored = -1.0  # the monitor's episode
        self.newest = common.Newest(node)
        self.said = False
        """Whether the present goal's instruction was given."""
        self.stamps: deque[Any] = deque(maxlen=8)
        """Of what was said from here on `instruction`; it is heard as well, and later."""
        self.publisher = node.create_publisher(Header, "instruction", common.LATCHED)
        subscribe = node.create_subscription
        self.subscriptions = [
            subscribe(Header, "instruction", self._on_instruction, common.LATCHED),
            subscribe(DiagnosticArray, "safety_node/status", self._on_safety, common.LATCHED),
            subscribe(DiagnosticArray, "monitor/status", self._on_monitor, common.LATCHED),
        ]
        self.timer = common.create_timer(node, PERIOD_S, self._tick)
        self.server = ActionServer(
            node, ExecuteInstruction, "~/execute_instruction", self._execute,
            goal_callback=self._on_goal, cancel_callback=lambda _: CancelResponse.ACCEPT,
        )  # fmt: skip

    def close(self) -> None:
        """Stop offering the action."""
        self.node.destroy_timer(self.timer)
        for subscription in self.subscriptions:
            self.node.destroy_subscription(subscription)
        self.server.destroy()
        self.node.destroy_publisher(self.publisher)

    def end(self, error: Error, message: str) -> None:
        """End the present goal, if there is one."""
        with self.lock:
            if self.goal is not None:
                self.goal.end(error, message)
                self._progress()

    # --- goals --------------------------------------------------------------------------------

    def _on_goal(self, request: Any) -> GoalResponse:
        why = ""
        if self.goal is not None:
            why = "another instruction is being executed; cancel it first"
        elif not self.is_active():
            why = "the policy node is not active"
        elif not 0 < len(request.instruction) <= MOST_CHARACTERS:
            why = (
                f"got an instruction of {len(request.instruction)} characters, expected 1 to "
                f"{MOST_CHARACTERS}"
            )
        elif common.seconds(request.time_limit) < 0:
            why = "got a negative time limit"
        if why:
            self.node.get_logger().error(f"goal rejected: {why}")
            return GoalResponse.REJECT
        # Taken here: a second goal may come before this one is executed.
        limit_s = common.seconds(request.time_limit) or self.limit_s
        with self.lock:
            self.goal = Execution(request.instruction, time.monotonic(), limit_s, self.scored)
            self.done, self.said = Future(executor=self.node.executor), False
            values, heard_s = self.safety
            if time.monotonic() - heard_s < SILENT_S:
                self.goal.on_safety(values, heard_s)
        return GoalResponse.ACCEPT

    async def _execute(self, handle: Any) -> Any:
        goal, self.handle = self.goal, handle
        if goal is None:
            handle.abort()
            return ExecuteInstruction.Result(
                error_code=ExecuteInstruction.Result.POLICY, error_msg="it was accepted too late"
            )
        try:
            self._progress()
            await self.done
            assert goal.outcome is not None
            error, message = goal.outcome
            elapsed = Duration(seconds=time.monotonic() - goal.began_s).to_msg()
            # Its state may have changed in the meantime: a canceled goal may still be done.
            if error == "NONE":
                handle.succeed()
            elif error == "CANCELED" and handle.status == GoalStatus.STATUS_CANCELING:
                handle.canceled()
            else:
                handle.abort()
        finally:
            self.goal = self.handle = None
        return ExecuteInstruction.Result(
            error_code=getattr(ExecuteInstruction.Result, error), error_msg=message,
            progress=goal.progress, elapsed_time=elapsed,
        )  # fmt: skip

    def _say(self, instruction: str) -> None:
        message = Header(frame_id=instruction)
        message.stamp = self.node.get_clock().now().to_msg()
        self.stamps.append(message.stamp)
        self.publisher.publish(message)

    def _progress(self) -> None:
        """Give the instruction once the arm is enabled; once there is an outcome, end it."""
        with self.lock:
            goal = self.goal
            if goal is None or self.handle is None or self.done.done():
                return
            if goal.outcome is None:
                if goal.armed and not self.said:
                    self.said = True
                    self._say(goal.instruction)
                return
            if self.said and goal.outcome.error != "REPLACED":
                self.hold()
                self._say("")
            self.done.set_result(True)

    # --- what happens meanwhile ---------------------------------------------------------------

    def _on_instruction(self, message: Header) -> None:
        with self.lock:
            if not self.newest.is_newer(message.stamp):
                return
            if self.goal is not None and self.said and message.stamp not in self.stamps:
                self.end("REPLACED", f"another instruction came: {message.frame_id!r}")

    def _on_safety(self, message: DiagnosticArray) -> None:
        with self.lock:
            self.safety = common.key_values(message), time.monotonic()
            if self.goal is not None:
                self.goal.on_safety(*self.safety)
                self._progress()

    def _on_monitor(self, message: DiagnosticArray) -> None:
        values = common.key_values(message)
        with self.lock:
            self.scored = max(-1.0, number(values, "episode"))  # NaN is dropped
            if self.goal is not None:
                self.goal.on_monitor(values)
                self._progress()

    def _tick(self) -> None:
        with self.lock:
            goal, handle, now_s = self.goal, self.handle, time.monotonic()
            if goal is not None and handle is None and now_s - goal.began_s > BEGUN_S:
                self.goal = None  # rclpy gave it up: its client is gone
            if goal is None or handle is None or self.done.done():
                return
            goal.tick(now_s)
            if handle.is_cancel_requested:
                goal.end("CANCELED", "canceled")
            self._progress()
            if goal.outcome is None:
                handle.publish_feedback(
                    ExecuteInstruction.Feedback(
                        safety_state=goal.safety_state, monitor_state=goal.monitor_state,
                        progress=goal.progress,
                        elapsed_time=Duration(seconds=now_s - goal.began_s).to_msg(),
                    )
                )  # fmt: skip
