"""Runs episodes of a simulated arm as an operator would: reset, enable, send the instruction.

For studies and `make demo`; it uses services and topics alone.
"""

from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import Header

from robot_bridge.nodes import common
from robot_bridge.nodes.sim_operator import SimOperator

CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE


class SimEpisodeClient(SimOperator):
    """An operator that also starts the simulation and the policy."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace, "client")

    def _connect(self) -> None:
        super()._connect()
        self.task = self.node.create_publisher(Header, "instruction", common.LATCHED)
        self._hear_status("policy_node")

    def transition(self, what: int) -> None:
        """Configure or activate the policy node.

        Raises:
            ValueError: it refuses.
        """
        request = ChangeState.Request(transition=Transition(id=what))
        if not self.call(ChangeState, "policy_node/change_state", request).success:
            why = self.heard.get("policy_node", {}).get("why", "see its log")
            raise ValueError(f"policy_node: transition {what} refused: {why}")

    def bring_up(self) -> None:
        """Configure and activate the policy node.

        Raises:
            ValueError: it refuses.
        """
        for transition in (CONFIGURE, ACTIVATE):
            self.transition(transition)

    def say(self, instruction: str) -> None:
        """Publish the instruction; "" ends the task."""
        message = Header(frame_id=instruction)
        message.stamp = self.node.get_clock().now().to_msg()
        self.task.publish(message)

    def play(self, seed: int, episode: int, limit_s: float) -> dict[str, Any]:
        """Run an episode to its end; return the reports of the simulation and the safety node.

        Raises:
            ValueError: a node refuses, or does not answer.
        """
        self.enable(False)  # before the policy stops, which would latch
        self.say("")
        self.rearm()
        started = self.begin(seed, episode)
        self.enable(True)
        self.say(started["instruction"])
        self.wait(lambda: not self.heard["episode"].get("running", True), "the episode", limit_s)
        with self.changed:
            return {**self.heard["episode"], "safety": dict(self.heard["safety_node"])}
