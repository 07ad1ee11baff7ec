"""Bags of a made-up arm, written message by message."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.recording.mcap_writer import McapWriter
from vla.contracts import registry

ROBOT = registry.load("vla.robots", "so101").SPEC
BEGIN_NS = 1_700_000_000_000_000_000
MS = 1_000_000
COMMAND = "/joint_trajectory_controller/joint_trajectory"
FORWARD = "/forward_command_controller/commands"


def header(time_ns: int, frame: str = "") -> Header:
    return Header(stamp=Time(sec=time_ns // 10**9, nanosec=time_ns % 10**9), frame_id=frame)


def state(time_ns: int, positions: list[float], names: Any = None) -> JointState:
    """Joints in another order than the arm's, with one that is not its own."""
    names = list(names or ROBOT.names)
    return JointState(
        header=header(time_ns), name=["other", *names[::-1]], position=[9.0, *positions[::-1]]
    )


def image(time_ns: int, shade: int, encoding: str = "rgb8", size: int = 96) -> Image:
    pixels = np.broadcast_to(np.array([shade, 60, 200], np.uint8), (size, size, 3))
    pixels = pixels if encoding == "rgb8" else pixels[..., ::-1]
    return Image(
        header=header(time_ns), height=size, width=size, step=3 * size, encoding=encoding,
        data=pixels.tobytes(),
    )  # fmt: skip


def jpeg(time_ns: int, shade: int) -> CompressedImage:
    pixels = np.full((96, 96, 3), (200, 60, shade), np.uint8)  # BGR
    data = cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, 95))[1].tobytes()
    return CompressedImage(header=header(time_ns), format="jpeg", data=data)


def command(time_ns: int, positions: list[float], points: int = 1) -> JointTrajectory:
    point = JointTrajectoryPoint(positions=positions, time_from_start=Duration(nanosec=10**8))
    return JointTrajectory(
        header=header(time_ns), joint_names=list(ROBOT.names), points=[point] * points
    )


def forward(positions: list[float]) -> Float64MultiArray:
    return Float64MultiArray(data=positions)


def status(time_ns: int, source: str) -> DiagnosticArray:
    pair = KeyValue(key="source", value=source)
    return DiagnosticArray(header=header(time_ns), status=[DiagnosticStatus(values=[pair])])


def type_name(said: Any) -> str:
    kind = type(said)
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"


class Bag:
    """A bag being written; messages are received 3 ms after their stamps."""

    def __init__(self, path: Path) -> None:
        self.writer = McapWriter(path)
        self.topics: set[str] = set()
        self.sent: list[tuple[str, int, Any]] = []

    def add(self, topic: str, time_ns: int, said: Any) -> None:
        if topic not in self.topics:
            self.topics.add(topic)
            self.writer.add_topic(topic, type_name(said))
        self.writer.write(topic, serialize_message(said), time_ns + 3 * MS, time_ns)
        self.sent.append((topic, time_ns, said))


def positions(value: float) -> list[float]:
    """Six joints that tell the moment: its number, and tenths by joint."""
    return [value + 0.1 * joint for joint in range(6)]


def arm_bag(
    path: Path, tenths: int = 20, tasks: Any = None, cameras: tuple[str, ...] = ("front", "wrist"),
    close: bool = True, skip: Callable[[str, int], bool] = lambda topic, tenth: False,
    swap: Callable[[str, int, Any], Any] = lambda topic, tenth, said: said,
    rename: Callable[[str], str] = lambda topic: topic,
) -> Path:  # fmt: skip
    """Write a bag in which tenth of a second i has state, pictures and then a command i.

    State i has positions i, picture i shade 12 i; the command 20 ms later is i + 0.5.
    The policy leads but from tenth 5 to 9, where a person does.
    """
    bag = Bag(path)
    said: list[tuple[int, str, int, Any]] = []
    for i in range(tenths):
        at = BEGIN_NS + 100 * MS * i
        if i in (tasks or {0: "push the cube"}):
            said.append((at, "/instruction", i, header(at, (tasks or {0: "push the cube"})[i])))
        said.append(
            (at, "/safety_node/status", i, status(at, "teleop" if 5 <= i < 10 else "policy"))
        )
        said.append((at, "/joint_states", i, state(at, positions(i))))
        said += [(at, f"/cameras/{c}/image_raw", i, image(at, 12 * i)) for c in cameras]
        said.append((at + 20 * MS, COMMAND, i, command(at + 20 * MS, positions(i + 0.5))))
    for at, topic, i, one in said:
        if not skip(topic, i):
            one = swap(topic, i, one)
            bag.add(rename(topic), at, one)
    if close:
        bag.writer.close()
    else:
        bag.writer._flush()
        bag.writer.abandon()
    return path
