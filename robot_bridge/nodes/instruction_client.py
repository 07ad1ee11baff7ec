"""Client of the policy node's action `execute_instruction`."""

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

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
        self._cancel = threading.Event()

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
            ValueError: the action is not offered, rejects the goal, or ends without a result.
        """
        self._cancel.clear()
        if not self._client.wait_for_server(FOUND_S):
            raise ValueError(
                f"no action {NAME} in {FOUND_S:g} s; see whether policy_node runs and its "
                "interfaces are built (vla ros interfaces)"
            )
        heard = threading.Event()

        def feedback(message: Any) -> None:
            heard.set()
            on_feedback(message.feedback)

        limit = Duration(seconds=time_limit_s).to_msg()
        goal = ExecuteInstruction.Goal(instruction=instruction, time_limit=limit)
        handle = self._result(self._client.send_goal_async(goal, feedback_callback=feedback))
        if not handle.accepted:
            raise ValueError(f"{NAME}: the goal is rejected; policy_node's log says why")
        asked, over = False, threading.Event()
        future = handle.get_result_async()
        future.add_done_callback(lambda _: over.set())
        while not over.wait(0.05):
            if self._cancel.is_set() and not asked:
                asked = True
                handle.cancel_goal_async()
                self.executor.wake()
            if not (self._client.server_is_ready() or over.wait(SILENT_S)):
                raise ValueError(f"{NAME}: policy_node is gone; silence stops the arm")
        result = future.result().result
        return Result(
            result.error_code, result.error_msg, float(result.progress),
            common.seconds(result.elapsed_time),
        )  # fmt: skip

    def _result(self, future: Any) -> Any:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        self.executor.wake()
        if not done.wait(FOUND_S):
            raise ValueError(f"{NAME} did not answer in {FOUND_S:g} s")
        return future.result()


def text(feedback: Any) -> str:
    """Return a feedback as words."""
    progress = "" if math.isnan(feedback.progress) else f", progress {feedback.progress:.2f}"
    monitor = f", {feedback.monitor_state}" if feedback.monitor_state else ""
    return f"{feedback.safety_state}{monitor}{progress}"
