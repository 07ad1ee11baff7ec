"""Client of the policy node's action `execute_instruction`."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from action_msgs.msg import GoalStatus
from mneme_vla_interfaces.action import ExecuteInstruction
from rclpy.action import ActionClient
from rclpy.duration import Duration

from robot_bridge.nodes import common
from robot_bridge.nodes.operator import Operator

NAME = "policy_node/execute_instruction"
FOUND_S = 10.0
"""Longest time in s until the action is found."""
SILENT_S = 5.0
"""Silence of the policy node in s that counts as its end; it gives feedback at 10 Hz."""
POLL_S = 0.05


class Result(NamedTuple):
    """How an instruction ended."""

    error_code: int
    """A constant of ExecuteInstruction.action; 0: done."""
    error_msg: str
    progress: float
    """Last progress of the reward model; NaN if there was none."""
    elapsed_s: float


class InstructionClient(Operator):
    """Has an arm follow instructions. A context manager; its end leaves the arm as it is."""

    def _connect(self) -> None:
        super()._connect()
        self._client = ActionClient(self.node, ExecuteInstruction, NAME)
        self._cancel, self._left = threading.Event(), False

    def cancel(self) -> None:
        """Cancel what is being executed; `run` returns when the arm is held."""
        self._cancel.set()

    def run(
        self, instruction: str, time_limit_s: float = 0.0,
        on_feedback: Callable[[Any], None] = lambda _: None,
    ) -> Result:  # fmt: skip
        """Execute an instruction until it ends.

        Args:
            instruction: What to do.
            time_limit_s: Time limit in s; 0 for the node's own.
            on_feedback: Called in another thread with each feedback.

        Raises:
            ValueError: the action is not offered, rejects the goal, or ends without a result. Then
                the goal is canceled.
        """
        deadline_s = time.monotonic() + FOUND_S
        while not self._client.wait_for_server(POLL_S):
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"no action {NAME} in {FOUND_S:g} s; see whether policy_node runs and its "
                    "interfaces are built (vla ros interfaces)"
                )
            self._raise_if_canceled()
        self._raise_if_canceled()
        heard_s = [time.monotonic()]

        def feedback(message: Any) -> None:
            heard_s[0] = time.monotonic()
            on_feedback(message.feedback)

        limit = Duration(seconds=time_limit_s).to_msg()
        goal = ExecuteInstruction.Goal(instruction=instruction, time_limit=limit)
        sent = self._client.send_goal_async(goal, feedback_callback=feedback)
        # Whatever ends this function: what was accepted, also later, is canceled.
        sent.add_done_callback(self._cancel_if_left)
        self._left = False
        try:
            handle = self.answer(sent, NAME, FOUND_S)
            if not handle.accepted:
                raise ValueError(f"{NAME}: the goal is rejected; policy_node's log says why")
            return self._follow(handle, heard_s)
        finally:
            self._left = True
            self._cancel.clear()
            if sent.done():
                self._cancel_if_left(sent)

    def _follow(self, handle: Any, heard_s: list[float]) -> Result:
        asked, over = False, threading.Event()
        future = handle.get_result_async()
        future.add_done_callback(lambda _: over.set())
        self.executor.wake()
        while not over.wait(POLL_S):
            if self._cancel.is_set() and not asked:
                asked = True
                handle.cancel_goal_async()
                self.executor.wake()
            if time.monotonic() - heard_s[0] > SILENT_S:
                raise ValueError(f"{NAME}: policy_node gave no feedback for {SILENT_S:g} s")
        answer = future.result()
        result = answer.result
        if answer.status != GoalStatus.STATUS_SUCCEEDED and result.error_code == 0:
            raise ValueError(f"{NAME}: it ended without a result; see policy_node's log")
        return Result(
            result.error_code, result.error_msg, float(result.progress),
            common.seconds(result.elapsed_time),
        )  # fmt: skip

    def _cancel_if_left(self, sent: Any) -> None:
        handle = sent.result()
        if self._left and handle is not None and handle.accepted:
            handle.cancel_goal_async()
            self.executor.wake()

    def _raise_if_canceled(self) -> None:
        if self._cancel.is_set():
            raise ValueError("canceled before it began")


def text(feedback: Any) -> str:
    """Return a feedback as words."""
    progress = "" if math.isnan(feedback.progress) else f", progress {feedback.progress:.2f}"
    monitor = f", {feedback.monitor_state}" if feedback.monitor_state else ""
    return f"{feedback.safety_state}{monitor}{progress}"
