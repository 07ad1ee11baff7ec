"""Conducts episodes of a simulated arm from outside, as a person would: reset, arm, say what to do.

For studies and `make demo`; it touches no internals, services and topics alone.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool, Trigger

from robot_bridge.nodes import common

PATIENCE_S = 60.0
"""How long a node may take to answer: a policy loads in that time."""
SETTLED_S = 10.0
"""How long the safety node may refuse to arm, since it has not heard what it needs."""
SETTLE_S = 0.1
"""How long joint states have gone on since a reset before the arm is enabled."""
CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE


C = TypeVar("C", bound="Conductor")


class Conductor:
    """A node in a thread of its own. A context manager."""

    def __init__(self, namespace: str = "") -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node("conductor", context=self.context, namespace=namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.changed = threading.Condition()
        self.heard: dict[str, dict[str, Any]] = {}
        self.task = self.node.create_publisher(Header, "task", common.LATCHED)
        self.node.create_subscription(String, "sim_arm/episode", self._episode, common.LATCHED)
        for name in ("safety_node", "policy_node"):
            self.node.create_subscription(
                DiagnosticArray, f"{name}/status", lambda m, n=name: self._status(n, m),
                common.LATCHED,
            )  # fmt: skip
        self.measured_s = 0.0
        self.node.create_subscription(JointState, "joint_states", self._joints, common.SENSORS)
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown()
        self.thread.join(5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def call(self, kind: Any, name: str, request: Any = None) -> Any:
        """Return a service's answer.

        Raises:
            ValueError: it is not there, or does not answer in time.
        """
        client = self.node.create_client(kind, name)
        try:
            if not client.wait_for_service(PATIENCE_S):
                raise ValueError(f"no service {name} in {PATIENCE_S:g} s; see what its node says")
            done = threading.Event()
            future = client.call_async(request or kind.Request())
            future.add_done_callback(lambda _: done.set())
            self.executor.wake()
            if not done.wait(PATIENCE_S):
                raise ValueError(f"{name} did not answer in {PATIENCE_S:g} s")
            return future.result()
        finally:
            self.node.destroy_client(client)

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

    def enable(self, on: bool) -> None:
        """Arm, or bring to rest and disarm; returns once that is so.

        Raises:
            ValueError: the safety node refuses.
        """
        end_s = time.monotonic() + SETTLED_S
        while True:  # it may not have heard the arm yet
            answer = self.call(SetBool, "safety_node/enable", SetBool.Request(data=on))
            if answer.success:
                break
            if (
                not answer.message.startswith(("no joint states", "still coming"))
                or time.monotonic() > end_s
            ):
                raise ValueError(f"safety_node: {answer.message}")
            time.sleep(0.1)
        wanted = ("holding", "following") if on else ("disarmed", "latched")
        self.wait(
            lambda: self.heard.get("safety_node", {}).get("state") in wanted, "the safety node"
        )

    def rearm(self) -> None:
        """Clear a latch, if there is one.

        Raises:
            ValueError: the arm is still coming to rest.
        """
        answer = self.call(Trigger, "safety_node/reset_estop")
        if not answer.success:
            raise ValueError(f"safety_node: {answer.message}")

    def estop(self) -> None:
        """Press the e-stop."""
        self.call(Trigger, "safety_node/estop")

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

    def wait(self, true: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until something that is heard is true.

        Raises:
            ValueError: it does not become so.
        """
        with self.changed:
            if not self.changed.wait_for(true, limit_s):
                raise ValueError(f"waited {limit_s:g} s for {what}; last heard: {self.heard}")

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def _joints(self, message: JointState) -> None:
        with self.changed:
            self.measured_s = common.seconds(message.header.stamp)
            self.changed.notify_all()

    def _episode(self, message: String) -> None:
        with self.changed:
            self.heard["episode"] = json.loads(message.data)
            self.changed.notify_all()

    def _status(self, name: str, message: DiagnosticArray) -> None:
        with self.changed:
            self.heard[name] = {one.key: one.value for one in message.status[0].values}
            self.changed.notify_all()
