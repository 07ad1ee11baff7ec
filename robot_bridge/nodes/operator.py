"""An operator's node in a thread: enables and stops an arm, and receives status messages."""

import threading
import time
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from std_srvs.srv import SetBool, Trigger

from robot_bridge.nodes import common
from robot_bridge.nodes.threaded import Threaded

PATIENCE_S = 60.0
"""Longest time in s until a node answers; a policy loads in that time."""
SETTLED_S = 30.0
"""Longest time in s for which the safety node may refuse because it lacks what a driver says."""
NOT_YET = ("no joint states", "still coming", "the driver has not said")
"""Beginnings of such refusals."""


class Operator(Threaded):
    """Enables and stops an arm, and receives its safety node's status. A context manager."""

    def __init__(self, namespace: str = "", name: str = "operator") -> None:
        self.heard: dict[str, dict[str, Any]] = {}
        """Key-values of each node's last status."""
        self.clients: dict[str, Any] = {}
        super().__init__(namespace, name)

    def _connect(self) -> None:
        self._hear_status("safety_node")

    def _hear_status(self, name: str) -> None:
        """Store a node's status messages in `heard`."""
        store = lambda message: self._store(name, common.key_values(message))  # noqa: E731
        self.node.create_subscription(DiagnosticArray, f"{name}/status", store, common.LATCHED)

    def _store(self, name: str, values: dict[str, Any]) -> None:
        with self.changed:
            self.heard[name] = values
            self.changed.notify_all()

    @property
    def state(self) -> str:
        """Last state of the safety node (`robot_bridge.safety.gate.State`); "" before the first."""
        return str(self.heard.get("safety_node", {}).get("state", ""))

    def call(self, kind: Any, name: str, request: Any = None) -> Any:
        """Return a service's answer.

        Raises:
            ValueError: the service does not exist, or does not answer in time.
        """
        # Kept: an answer to a client that was made just now may be lost on a busy machine.
        if name not in self.clients:
            self.clients[name] = self.node.create_client(kind, name)
        client = self.clients[name]
        if not client.wait_for_service(PATIENCE_S):
            raise ValueError(f"no service {name} in {PATIENCE_S:g} s; see what its node says")
        future = client.call_async(request or kind.Request())
        try:
            return self.answer(future, name)
        except ValueError:
            client.remove_pending_request(future)
            raise

    def answer(self, future: Any, name: str, limit_s: float = PATIENCE_S) -> Any:
        """Return the result of a future.

        Raises:
            ValueError: it does not come in time.
        """
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        self.executor.wake()
        if not done.wait(limit_s):
            raise ValueError(f"{name} did not answer in {limit_s:g} s")
        return future.result()

    def enable(self, on: bool) -> None:
        """Enable the arm, or bring it to rest and disable it; wait until that is done.

        Raises:
            ValueError: the safety node refuses.
        """
        end_s = time.monotonic() + SETTLED_S
        while True:
            answer = self.call(SetBool, "safety_node/enable", SetBool.Request(data=on))
            if answer.success:
                break
            if not answer.message.startswith(NOT_YET) or time.monotonic() > end_s:
                raise ValueError(f"safety_node: {answer.message}")
            time.sleep(0.1)
        wanted = ("holding", "tracking") if on else ("disabled", "latched_fault")
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
        """Trigger the e-stop."""
        self.call(Trigger, "safety_node/estop")

    def wait(self, true: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until a condition on received messages holds.

        Raises:
            ValueError: it does not hold in time.
        """
        with self.changed:
            if not self.changed.wait_for(true, limit_s):
                raise ValueError(f"waited {limit_s:g} s for {what}; last heard: {self.heard}")
