"""Shared by all nodes: parameters, QoS after REP-2003, diagnostics, start and end."""

import dataclasses
import gc
import signal
import sys
import threading
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
    qos_profile_system_default,
)
from rclpy.signals import SignalHandlerOptions
from rclpy.time import Time
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.launching import node_settings as described
from vla.contracts import renames

SENSORS = qos_profile_sensor_data
"""QoS of subscribers to sensors: best effort, the latest five."""
DRIVERS = qos_profile_system_default
"""QoS of publishers of sensors."""
COMMANDS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=10, reliability=ReliabilityPolicy.RELIABLE
)
"""QoS of commands: a controller that was busy misses none, and ends with the latest."""
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)  # fmt: skip
"""QoS of states: a late subscriber gets the last one."""
DIAGNOSTICS_S = 1.0
STEADY = Clock(clock_type=ClockType.STEADY_TIME)
STOP_POLL_S = 0.1
"""Longest time in s an idle node takes to see that it has to stop."""
SWITCH_S = 5e-4
"""Switch interval in s of Python's threads; its default of 5 ms is half a tick."""
LEVELS = {
    "ok": DiagnosticStatus.OK, "warn": DiagnosticStatus.WARN, "error": DiagnosticStatus.ERROR,
    "stale": DiagnosticStatus.STALE,
}  # fmt: skip


def liveliness_qos(
    lease_s: float, kind: LivelinessPolicy = LivelinessPolicy.AUTOMATIC
) -> QoSProfile:
    """Return QoS with which each side notices the end of the other's process within a lease."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE,
        liveliness=kind, liveliness_lease_duration=Duration(seconds=lease_s),
    )  # fmt: skip


class AlivePublisher:
    """A publisher that says itself, from a thread, that its process lives.

    A process whose Python is stuck counts as dead. Automatic liveliness would not notice, and can
    deadlock in Fast DDS when another node ends (eProsima/Fast-DDS#6502).
    """

    def __init__(self, node: Any, kind: Any, topic: str, lease_s: float) -> None:
        qos = liveliness_qos(lease_s, LivelinessPolicy.MANUAL_BY_TOPIC)
        self.node, self.publisher = node, node.create_publisher(kind, topic, qos)
        self.publish = self.publisher.publish
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._assert, args=(lease_s / 5,), daemon=True)
        self.thread.start()

    def _assert(self, period_s: float) -> None:
        while not self.over.wait(period_s):
            self.publisher.assert_liveliness()

    def close(self) -> None:
        """Say no more, and destroy the publisher."""
        self.over.set()
        self.thread.join()
        self.node.destroy_publisher(self.publisher)


def parameters(node: Any, kind: type[Any]) -> Any:
    """Declare a parameter for every field of a settings class, and return what they are set to.

    They are read once, at the start, and read-only from then on.

    Raises:
        ValueError: a value is out of range or of another type, or a name is of an earlier release.
    """
    _refuse_old_names(node)
    texts, hints = described.descriptions(kind), typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        default: Any = field.default
        if typing.get_origin(hints[field.name]) is tuple:
            default = list(default) or [""]
        descriptor = ParameterDescriptor(description=texts.get(field.name, ""), read_only=True)
        low, high = field.metadata.get("range", (None, None))
        if low is not None and isinstance(default, float):
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
        elif low is not None:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
        if "names" in field.metadata:
            descriptor.additional_constraints = f"one of {', '.join(field.metadata['names'])}"
        values[field.name] = declare(node, field.name, default, descriptor)
    return described.read(kind, values)


def declare(node: Any, name: str, default: Any, descriptor: ParameterDescriptor) -> Any:
    """Declare a parameter and return what it is set to.

    Raises:
        ValueError: the value is out of range or of another type.
    """
    try:
        return node.declare_parameter(name, default, descriptor).value
    except Exception as error:  # rclpy has a class for each way to be wrong, with no base
        raise ValueError(f"parameter {name}: {' '.join(str(error).split())}") from error


def _refuse_old_names(node: Any) -> None:
    """Raise ValueError if a parameter is set by its name of an earlier release."""
    untyped = ParameterDescriptor(dynamic_typing=True)
    for old, new in renames.PARAMETERS.get(node.get_name(), {}).items():
        value = node.declare_parameter(old, None, untyped).value
        node.undeclare_parameter(old)
        if value is not None:
            raise ValueError(f"parameter {old} is now {new}; set {new} to {value}")


def status(
    name: str, level: str, message: str, values: Mapping[str, Any], hardware: str = ""
) -> DiagnosticStatus:
    """Return a diagnostic status; numbers are written with six digits."""
    pairs = [KeyValue(key=key, value=_text(value)) for key, value in values.items()]
    return DiagnosticStatus(
        level=LEVELS[level], name=name, message=message, hardware_id=hardware, values=pairs
    )


def array(node: Any, line: DiagnosticStatus) -> DiagnosticArray:
    """Return a stamped message with one status."""
    message = DiagnosticArray(status=[line])
    message.header.stamp = node.get_clock().now().to_msg()
    return message


def key_values(message: DiagnosticArray) -> dict[str, str]:
    """Return the key-values of a message's first status; none if it has no status."""
    return {pair.key: pair.value for status in message.status[:1] for pair in status.values}


class Newest:
    """Tells which message of several publishers is the newest, by stamps.

    Each has a last message for late subscribers, and they come in any order.
    """

    def __init__(self, node: Any) -> None:
        self._clock, self._newest_s = node.get_clock(), -np.inf

    def is_newer(self, stamp: Any) -> bool:
        """Return whether a message is as new as all before; one without a stamp always is."""
        stamp_s = seconds(stamp)
        if self._clock.now().nanoseconds * 1e-9 < self._newest_s:
            self._newest_s = -np.inf  # the clock was set back, as by a simulation
        if stamp_s and stamp_s < self._newest_s:
            return False
        self._newest_s = max(self._newest_s, stamp_s or -np.inf)
        return True


def publish_diagnostics(node: Any, line: Callable[[], DiagnosticStatus]) -> None:
    """Publish a status on /diagnostics every second."""
    publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
    create_timer(node, DIAGNOSTICS_S, lambda: publisher.publish(array(node, line())))


def status_publisher(node: Any, line: Callable[[], DiagnosticStatus]) -> Callable[[], None]:
    """Publish a status on /diagnostics; return a function that publishes it on ~/status."""
    publisher = node.create_publisher(DiagnosticArray, "~/status", LATCHED)
    publish_diagnostics(node, line)
    return lambda: publisher.publish(array(node, line()))


def percentiles(name: str, spans_s: Collection[float]) -> dict[str, float]:
    """Return median and 99th percentile in ms as key-values; none of no spans."""
    if not spans_s:
        return {}
    p50, p99 = np.percentile(list(spans_s), (50, 99))
    return {f"{name} p50 ms": 1e3 * float(p50), f"{name} p99 ms": 1e3 * float(p99)}


def chunk(names: tuple[str, ...], stamp: Time, targets: np.ndarray, hz: float) -> JointTrajectory:
    """Return targets f64 [k, u], one per control step from a stamp on."""
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = stamp.to_msg()
    message.points = [
        JointTrajectoryPoint(
            positions=target.tolist(), time_from_start=Duration(seconds=i / hz).to_msg()
        )
        for i, target in enumerate(targets)
    ]
    return message


def create_timer(node: Any, period_s: float, act: Callable[[], None]) -> Any:
    """Return a timer of the monotonic clock: ROS time may stand still."""
    return node.create_timer(period_s, act, clock=STEADY)


def seconds(stamp: Any) -> float:
    """Return a message's stamp in seconds."""
    return float(stamp.sec) + 1e-9 * stamp.nanosec


def run(make: Callable[[], Node], argv: list[str] | None = None) -> int:
    """Spin a node until Ctrl-C or SIGTERM; return the exit code.

    Args:
        make: Makes the node; a ValueError has the reason why it does not start.
        argv: Command line with ROS arguments.
    """
    # A handler only sets a flag: a shutdown inside one destroys the node in the middle of the
    # interrupted callback, and rclpy waits for ever if that callback holds its lock.
    stop = threading.Event()
    sys.setswitchinterval(SWITCH_S)
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    node = None
    executor = SingleThreadedExecutor()
    try:
        node = make()
        executor.add_node(node)
        while rclpy.ok() and not stop.is_set():
            executor.spin_once(timeout_sec=STOP_POLL_S)
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        executor.shutdown()
        if node is not None:
            node.destroy_node()
        # A node that failed in its constructor lives on in cycles, and has no name here. Freed at
        # the interpreter's end, after the middleware, it can crash the process.
        gc.collect()
        rclpy.try_shutdown()
    return 0


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
