"""Conducts episodes of a simulated arm from outside, as a person would: reset, arm, say what to do.

For studies and `make demo`; it touches no internals, services and topics alone.
"""

import json
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import Header, String
from std_srvs.srv import Trigger

from robot_bridge.nodes import common
from robot_bridge.nodes.operator import Operator

SETTLE_S = 0.1
"""How long joint states have gone on since a reset before the arm is enabled."""
CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE


class Conductor(Operator):
    """An operator that also tells the simulation and the policy when to begin."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace, "conductor")

    def _connect(self) -> None:
        self.measured_s = 0.0
        self.task = self.node.create_publisher(Header, "task", common.LATCHED)
        self._hear_status("policy_node")
        self.node.create_subscription(String, "sim_arm/episode", self._episode, common.LATCHED)
        self.node.create_subscription(JointState, "joint_states", self._joints, common.SENSORS)

    def transition(self, what: int) -> None:
        """Configure or activate the policy node.

        Raises:
            ValueError: it refuses.
        """
        request = ChangeState.Request(transition=Transition(id=what))
        if not self.call(ChangeState, "policy_node/change_state", request).success:
            why = self.heard.get("policy_node", {}).get("why", "see what it says")
            raise ValueError(f"policy_node: transition {what} refused: {why}")

    def bring_up(self) -> None:
        """Configure and activate the policy node.

        Raises:
            ValueError: it refuses.
        """
        for transition in (CONFIGURE, ACTIVATE):
            self.transition(transition)

    def set(self, node: str, **values: Any) -> None:
        """Set parameters of a node."""
        parameters = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=parameters)
        self.call(SetParameters, f"{node}/set_parameters", request)

    def begin(self, seed: int, episode: int) -> dict[str, Any]:
        """Begin an episode of the simulation; return its instruction and when it began.

        Returns once the arm has been seen for a while since.
        """
        self.set("sim_arm", seed=seed, episode=episode)
        told: dict[str, Any] = json.loads(self.call(Trigger, "sim_arm/reset").message)
        self.wait(
            lambda: self.heard.get("episode", {}).get("number") == episode, "the simulated arm"
        )
        # Whoever is armed has to have seen where the arm is since.
        self.wait(lambda: self.measured_s > told["began_s"] + SETTLE_S, "joint states")
        return told

    def say(self, instruction: str) -> None:
        """Say what is to be done; "" ends it."""
        message = Header(frame_id=instruction)
        message.stamp = self.node.get_clock().now().to_msg()
        self.task.publish(message)

    def play(self, seed: int, episode: int, limit_s: float) -> dict[str, Any]:
        """Play an episode to its end; return what the simulation says of it, and the safety node.

        Raises:
            ValueError: a node refuses, or does not answer.
        """
        self.enable(False)  # before the policy falls silent, which would latch
        self.say("")
        self.rearm()
        told = self.begin(seed, episode)
        self.enable(True)
        self.say(told["instruction"])
        self.wait(lambda: not self.heard["episode"].get("running", True), "the episode", limit_s)
        with self.changed:
            return {**self.heard["episode"], "safety": dict(self.heard["safety_node"])}

    def _joints(self, message: JointState) -> None:
        with self.changed:
            self.measured_s = common.seconds(message.header.stamp)
            self.changed.notify_all()

    def _episode(self, message: String) -> None:
        with self.changed:
            self.heard["episode"] = json.loads(message.data)
            self.changed.notify_all()
