"""A person at the switches: arms an arm, stops it, hears how it stands; a node in a thread."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from std_srvs.srv import SetBool, Trigger

from robot_bridge.nodes import common

PATIENCE_S = 60.0
"""How long a node may take to answer: a policy loads in that time."""
SETTLED_S = 10.0
"""How long the safety node may refuse to arm, since it has not heard what it needs."""

Self = TypeVar("Self", bound="Operator")


class Operator:
    """A node in a thread of its own. A context manager."""

    def __init__(self, namespace: str = "", name: str = "operator") -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node(name, context=self.context, namespace=namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.changed = threading.Condition()
        self.heard: dict[str, dict[str, Any]] = {}
        """Key-values of each node's last status."""
        self._hear_status("safety_node")
        self._connect()
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()

    def _connect(self) -> None:
        """Make what a subclass listens and speaks with, before anything comes in."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End thread and node."""
        self.executor.shutdown()
        self.thread.join(5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def _hear_status(self, name: str) -> None:
        """Keep what a node says on its `status` in `heard`."""
        self.node.create_subscription(
            DiagnosticArray, f"{name}/status", lambda m: self._status(name, m), common.LATCHED
        )

    @property
    def state(self) -> str:
        """What the safety node last said: disarmed, holding, following, stopping or latched;
        "" before it has said anything.
        """
        return str(self.heard.get("safety_node", {}).get("state", ""))

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
        self.wait(lambda: self.state in wanted, "the safety node")

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

    def _status(self, name: str, message: DiagnosticArray) -> None:
        with self.changed:
            self.heard[name] = {one.key: one.value for one in message.status[0].values}
            self.changed.notify_all()
