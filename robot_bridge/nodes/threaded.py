"""A node in a thread, for programs that are no node."""

import contextlib
import threading
from typing import TypeVar

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.task import Future

Self = TypeVar("Self", bound="Threaded")


class Threaded:
    """A node that spins while the program does something else. A context manager."""

    def __init__(self, namespace: str, name: str) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node(name, context=self.context, namespace=namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.changed = threading.Condition()
        """Held and notified by callbacks that store a message."""
        self._over: Future[None] = Future()
        self._connect()
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()

    def _connect(self) -> None:
        """Create subscriptions and publishers, before the node spins."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End thread and node."""
        # The thread first: a shutdown destroys what a spinning executor still uses.
        self._over.set_result(None)
        self.thread.join(5.0)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin_until_future_complete(self._over)
