"""What all nodes share: parameters, QoS after REP-2003, diagnostics, start and end."""

import dataclasses
import signal
import sys
import threading
import typing
from collections.abc import Callable, Mapping
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import (
    ExternalShutdownException,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
)
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

from robot_bridge import settings as described

SENSORS = qos_profile_sensor_data
"""Of those who subscribe to sensors: best effort, the latest five."""
DRIVERS = qos_profile_system_default
"""Of those who publish them."""
COMMANDS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=10, reliability=ReliabilityPolicy.RELIABLE
)
"""Commands: a controller that was busy for a moment misses none, and ends with the latest."""
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)  # fmt: skip
"""States: who comes later hears the last one."""
DIAGNOSTICS_S = 1.0
STEADY = Clock(clock_type=ClockType.STEADY_TIME)
ASKED_S = 0.1
"""How long a node that hears nothing may take to see that it is asked to stop."""
SWITCH_S = 5e-4
"""How long a thread may keep Python to itself while another waits; Python's own 5 ms is a tick."""
LEVELS = {
    "ok": DiagnosticStatus.OK, "warn": DiagnosticStatus.WARN, "error": DiagnosticStatus.ERROR,
    "stale": DiagnosticStatus.STALE,
}  # fmt: skip


def alive(lease_s: float) -> QoSProfile:
    """Return `COMMANDS` with which each side hears in time that the other's process is gone."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE,
        liveliness=LivelinessPolicy.AUTOMATIC, liveliness_lease_duration=Duration(seconds=lease_s),
    )  # fmt: skip


def parameters(node: Any, kind: type[Any]) -> Any:
    """Declare a parameter for every field of a settings class, and return what they are set to.

    They are read once, at the start: what a running arm relies on does not change under it.

    Raises:
        ValueError: a value is out of range, or of another type.
    """
    words, hints = described.descriptions(kind), typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        default: Any = field.default
        if typing.get_origin(hints[field.name]) is tuple:
            default = list(default) or [""]
        descriptor = ParameterDescriptor(description=words.get(field.name, ""), read_only=True)
        low, high = field.metadata.get("range", (None, None))
        if low is not None and isinstance(default, float):
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
        elif low is not None:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
        if "names" in field.metadata:
            descriptor.additional_constraints = f"one of {', '.join(field.metadata['names'])}"
        try:
            values[field.name] = node.declare_parameter(field.name, default, descriptor).value
        except Exception as error:  # rclpy has a class for each way to be wrong, with no base
            raise ValueError(f"parameter {field.name}: {' '.join(str(error).split())}") from error
    return described.read(kind, values)


def status(
    name: str, level: str, message: str, values: Mapping[str, Any], hardware: str = ""
) -> DiagnosticStatus:
    """Return one line of diagnostics; numbers are written with six digits."""
    pairs = [KeyValue(key=key, value=_text(value)) for key, value in values.items()]
    return DiagnosticStatus(
        level=LEVELS[level], name=name, message=message, hardware_id=hardware, values=pairs
    )


def array(node: Any, one: DiagnosticStatus) -> DiagnosticArray:
    """Return a stamped message with one line."""
    message = DiagnosticArray(status=[one])
    message.header.stamp = node.get_clock().now().to_msg()
    return message


def diagnose(node: Any, told: Callable[[], DiagnosticStatus]) -> None:
    """Publish a line of diagnostics every second."""
    publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
    every(node, DIAGNOSTICS_S, lambda: publisher.publish(array(node, told())))


def every(node: Any, period_s: float, act: Callable[[], None]) -> Any:
    """Return a timer of the monotonic clock: the one of stamps may stand, and nobody were told."""
    return node.create_timer(period_s, act, clock=STEADY)


def seconds(stamp: Any) -> float:
    """Return a message's stamp in seconds."""
    return float(stamp.sec) + 1e-9 * stamp.nanosec


def run(make: Callable[[], Node], argv: list[str] | None = None, threads: int = 1) -> int:
    """Spin a node until Ctrl-C or SIGTERM; return the exit code.

    Args:
        make: Makes the node; a ValueError says why it does not start.
        argv: Words of the command line, ROS arguments among them.
        threads: Callbacks that may run side by side, where their groups allow it.
    """
    # A handler only takes note: shut down from within one, rclpy destroys the node in the middle of
    # whatever callback it interrupted, and waits for ever if that holds its lock.
    asked = threading.Event()
    sys.setswitchinterval(SWITCH_S)
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    node = None
    executor = MultiThreadedExecutor(threads) if threads > 1 else SingleThreadedExecutor()
    try:
        node = make()
        executor.add_node(node)
        while rclpy.ok() and not asked.is_set():
            executor.spin_once(timeout_sec=ASKED_S)
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        executor.shutdown()
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
    return 0


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
