"""Reads what a data set needs out of a bag: the numbers at once, the pictures when asked for.

Bags are those of the node `recorder`, or stock rosbag2's with the same topics. What becomes of them
is decided in `robot_bridge.convert_bag`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mcap.records import Message
from mcap_ros2.decoder import DecoderFactory

from robot_bridge import convert
from robot_bridge.mcap_reader import Bag, open_bag
from robot_bridge.recording import stamp_ns

STATE = "sensor_msgs/msg/JointState"
COMMANDS = ("trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64MultiArray")
PICTURES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
TASK = "std_msgs/msg/Header"
STATUS = "diagnostic_msgs/msg/DiagnosticArray"
HEADER_BYTES = 12
"""Of a message in CDR that begins with a stamp, up to its end."""
MOST_PX = 1 << 25
"""Pixels of the largest picture that is decoded."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Full names of the topics that are read; of several for one thing, one may have messages."""

    state: str
    command: tuple[str, ...]
    task: str
    status: str
    cameras: Mapping[str, tuple[str, ...]]
    """By name of the camera."""


@dataclass(kw_only=True)
class Series:
    """Messages of one topic with rising stamps."""

    topic: str = ""
    """Where they came from; empty if nothing came."""
    stamps: list[int] = field(default_factory=list)
    """Nanoseconds, ROS time."""
    values: list[Any] = field(default_factory=list)
    """What they say; of pictures, which message of the topic it is."""
    skipped: int = 0
    """Messages whose stamp was not later than the one before."""

    def add(self, topic: str, stamp: int, value: Any) -> None:
        """Append a message unless its stamp goes back."""
        self.topic = topic
        if self.stamps and stamp <= self.stamps[-1]:
            self.skipped += 1
            return
        self.stamps.append(stamp)
        self.values.append(value)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a bag holds."""

    bag: Bag
    state: Series
    """Positions f64 [u]."""
    command: Series
    """Commanded positions f64 [u]."""
    task: Series
    """Instructions."""
    status: Series
    """Whether a person leads the arm."""
    cameras: dict[str, Series]

    def all_series(self) -> list[Series]:
        """Return all of it."""
        return [self.state, self.command, self.task, self.status, *self.cameras.values()]


def scan(path: Path, names: Names, joints: tuple[str, ...]) -> Scan:
    """Read everything but the pictures of a bag.

    Args:
        path: An MCAP file; one that was cut off is read as far as it is whole.
        names: Topics.
        joints: In the order of states and actions.

    Raises:
        ValueError: no MCAP file, damaged, a topic is of another type, or a message is not what it
            should be.
    """
    found = Scan(
        bag=open_bag(path), state=Series(), command=Series(), task=Series(), status=Series(),
        cameras={name: Series() for name in names.cameras},
    )  # fmt: skip
    take = _takers(found, names, joints)
    named = [names.state, names.task, names.status, *names.command]
    named += [topic for topics in names.cameras.values() for topic in topics]
    if len(take) < len(named):
        twice = next(topic for topic in named if named.count(topic) > 1)
        raise ValueError(f"topic {twice} is named for two things; give each a topic of its own")
    decoders = DecoderFactory()
    counts: dict[str, int] = {}
    for message in found.bag.messages():
        channel = found.bag.channels[message.channel_id]
        if channel.topic not in take:
            continue
        kinds, series, read = take[channel.topic]
        schema = found.bag.schemas.get(channel.schema_id)
        what = f"{path}: {channel.topic}"
        if schema is None or schema.name not in kinds:
            got = schema.name if schema else "no type"
            raise ValueError(f"{what} is {got}, expected {' or '.join(kinds)}; name another topic")
        if series.topic not in ("", channel.topic):
            raise ValueError(
                f"{path}: messages on both {series.topic} and {channel.topic}; name one of them "
                "with --command-topic or --camera-topic"
            )
        if kinds == PICTURES:
            if len(message.data) < HEADER_BYTES:
                raise ValueError(f"{what}: a message of {len(message.data)} bytes; leave it out")
            value, stamp = counts.get(channel.topic, 0), stamp_ns(message.data)
            counts[channel.topic] = value + 1
        else:
            said = _decoded(decoders, channel, schema, message, what)
            stamp = _stamp(said)
            value = read(said, f"{what} at {(stamp or message.log_time) / 1e9:.3f} s")
        series.add(channel.topic, stamp or message.log_time, value)
    return found


def _takers(
    found: Scan, names: Names, joints: tuple[str, ...]
) -> dict[str, tuple[tuple[str, ...], Series, Callable[[Any, str], Any]]]:
    """Return types, place and reader of every topic."""

    def state(said: Any, what: str) -> np.ndarray:
        return convert.by_name(said.name, said.position, joints, what)

    def command(said: Any, what: str) -> np.ndarray:
        if hasattr(said, "data"):
            return convert.by_name(joints[: len(said.data)], said.data, joints, what)
        if len(said.points) != 1:
            raise ValueError(
                f"{what}: got {len(said.points)} points in a command, expected one (is it a "
                "chunk? --command-topic names what was sent to the arm)"
            )
        _, values = convert.trajectory(
            said.joint_names, [said.points[0].positions], [0.0], joints, what
        )
        return values[0]

    def fitting(read: Callable[[Any, str], np.ndarray]) -> Callable[[Any, str], np.ndarray]:
        def checked(said: Any, what: str) -> np.ndarray:
            try:
                return _finite(read(said, what), joints, what)
            except ValueError as error:
                hint = "name the arm that was recorded with --robot, or leave the bag out"
                raise ValueError(f"{error}; expected {', '.join(joints)}: {hint}") from error

        return checked

    take: dict[str, tuple[tuple[str, ...], Series, Callable[[Any, str], Any]]] = {
        names.state: ((STATE,), found.state, fitting(state)),
        names.task: ((TASK,), found.task, lambda said, _: said.frame_id),
        names.status: ((STATUS,), found.status, lambda said, _: _by_person(said)),
    }
    take |= dict.fromkeys(names.command, (COMMANDS, found.command, fitting(command)))
    for camera, topics in names.cameras.items():
        take |= dict.fromkeys(topics, (PICTURES, found.cameras[camera], _unread))
    return take


def _decoded(
    decoders: DecoderFactory, channel: Any, schema: Any, message: Message, what: str
) -> Any:
    decode = decoders.decoder_for(channel.message_encoding, schema)
    if decode is None:
        raise ValueError(
            f"{what}: is encoded as {channel.message_encoding} by {schema.encoding}, expected cdr "
            "by ros2msg; record it with rosbag2's mcap storage or our recorder"
        )
    try:
        return decode(message.data)
    except Exception as error:  # the library has no class for a message that is too short
        raise ValueError(f"{what}: damaged message ({error}); leave the bag out") from error


def _stamp(said: Any) -> int:
    """Return a message's own stamp; 0 if it has none."""
    stamp = getattr(getattr(said, "header", said), "stamp", None)
    return 0 if stamp is None else stamp.sec * 1_000_000_000 + stamp.nanosec


def _finite(values: np.ndarray, joints: tuple[str, ...], what: str) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(f"{what}: joint {joints[wrong[0]]!r} is {values[wrong[0]]}")
    return values


def _by_person(said: Any) -> bool:
    pairs = {pair.key: pair.value for one in said.status for pair in one.values}
    return pairs.get("source") == "teleop"


def _unread(said: Any, what: str) -> None:
    """Stand in where a message is not decoded."""


def lacking(found: Scan, names: Names) -> str:
    """Return what a bag lacks of state, command and cameras, in a sentence; empty if nothing."""
    wanted = {"state": (names.state,), "command": names.command}
    wanted |= {f"camera {name}": topics for name, topics in names.cameras.items()}
    series = {"state": found.state, "command": found.command}
    series |= {f"camera {name}": one for name, one in found.cameras.items()}
    for what, topics in wanted.items():
        if not series[what].stamps:
            present = {channel.topic for channel in found.bag.channels.values()}
            known = ", ".join(sorted(present)) or "none"
            if not found.bag.closed:
                known += f" (it was cut off after {found.bag.whole} whole bytes)"
            return (
                f"{found.bag.path}: no message of the {what} on {' or '.join(topics)}; the bag "
                f"has {known}: name the topic with an option (vla convert --help)"
            )
    return ""


class Pictures:
    """One camera's pictures of a bag, read once from its begin to its end."""

    def __init__(self, bag: Bag, series: Series, height: int, width: int) -> None:
        self._bag, self._series, self._size = bag, series, (height, width)
        self._messages = enumerate(self._of_topic())
        self._at = -1
        self._pixels = np.zeros((height, width, 3), np.uint8)

    def read(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield RGB u8 [h, w, 3] for each of some rows of the series, which never go back.

        Raises:
            ValueError: a picture is damaged or of an encoding that is not read.
        """
        for row in rows:
            wanted = self._series.values[row]
            while self._at < wanted:
                self._at, message = next(self._messages)
                if self._at == wanted:
                    stamp_s = self._series.stamps[row] / 1e9
                    what = f"{self._bag.path}: {self._series.topic} at {stamp_s:.3f} s"
                    schema = self._bag.schemas[self._bag.channels[message.channel_id].schema_id]
                    self._pixels = convert.fitted(_image(schema, message, what), *self._size)
            yield self._pixels

    def _of_topic(self) -> Iterator[Message]:
        for message in open_bag(self._bag.path).messages():
            if self._bag.channels[message.channel_id].topic == self._series.topic:
                yield message


def _image(schema: Any, message: Message, what: str) -> np.ndarray:
    decode = DecoderFactory().decoder_for("cdr", schema)
    try:
        assert decode is not None
        said = decode(message.data)
    except Exception as error:  # see _decoded
        raise ValueError(f"{what}: damaged picture ({error}); leave the bag out") from error
    if schema.name == PICTURES[0]:
        return convert.picture(said.data, said.height, said.width, said.step, said.encoding, what)
    return unpacked(bytes(said.data), what)


def unpacked(data: bytes, what: str) -> np.ndarray:
    """Return RGB u8 [h, w, 3] of a JPEG or PNG.

    Raises:
        ValueError: it is neither, damaged or too large.
    """
    if not data.startswith((b"\xff\xd8", b"\x89PNG\r\n\x1a\n")):
        raise ValueError(f"{what}: begins with {data[:4]!r}, expected jpeg or png; leave it out")
    try:
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise ValueError(f"{what}: damaged picture ({error.err}); leave the bag out") from error
    whole = data.rstrip(b"\0").endswith((b"\xff\xd9", b"IEND\xaeB`\x82"))
    if found is None or not whole or found.shape[0] * found.shape[1] > MOST_PX:
        raise ValueError(f"{what}: damaged picture ({len(data)} bytes); leave the bag out")
    return found[..., ::-1]
