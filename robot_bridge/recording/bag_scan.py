"""Reads a bag's messages for a data set: numbers at once, images on demand.

Bags are those of the node `recorder`, or of rosbag2 with the same topics.
`robot_bridge.recording.convert_bag` makes a data set of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mcap.records import Message
from mcap_ros2.decoder import DecoderFactory

from robot_bridge.launching.driver import Driver
from robot_bridge.recording.mcap_reader import Bag, open_bag
from robot_bridge.sensing import convert
from robot_bridge.sensing.joint_states import JointStates

STATE = "sensor_msgs/msg/JointState"
FORWARD = "std_msgs/msg/Float64MultiArray"
"""The only type without a stamp."""
COMMANDS = ("trajectory_msgs/msg/JointTrajectory", FORWARD)
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
INSTRUCTION = "std_msgs/msg/Header"
STATUS = "diagnostic_msgs/msg/DiagnosticArray"
MOST_PX = 1 << 25
"""Pixels of the largest decoded image."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Full names of topics; of several for the same images, only one may have messages."""

    state: str
    command: tuple[str, ...]
    """If the first has messages the others do not count."""
    instruction: tuple[str, ...]
    status: str
    cameras: Mapping[str, tuple[str, ...]]
    """By name of the camera."""


@dataclass(kw_only=True)
class Series:
    """Messages of one topic with rising stamps."""

    topic: str = ""
    """Their topic; empty if there are none."""
    stamps: list[int] = field(default_factory=list)
    """Nanoseconds, ROS time."""
    values: list[Any] = field(default_factory=list)
    """Contents; of images the index of the topic's message."""
    skipped: int = 0
    """Number of messages whose stamp was not later than the one before."""

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
    """Contents of a bag."""

    bag: Bag
    state: Series
    """Positions f64 [u]."""
    command: Series
    """Commanded positions f64 [u]."""
    instruction: Series
    """Instructions."""
    status: Series
    """Whether a person leads the arm."""
    cameras: dict[str, Series]

    @property
    def required(self) -> dict[str, Series]:
        """What every frame needs, by name."""
        cameras = {f"camera {name}": series for name, series in self.cameras.items()}
        return {"state": self.state, "command": self.command, **cameras}


def scan(path: Path, names: Names, arm: Driver, max_age_s: float = 0.25) -> Scan:
    """Read everything but the images of a bag.

    Args:
        path: An MCAP file; one that was cut off is read as far as it is whole.
        names: Topics.
        arm: Joints in the order of states and actions, and what the arm's driver calls them.
        max_age_s: Largest age in s of a joint that was measured in another message.

    Raises:
        ValueError: the file is no MCAP file or damaged, or a topic has another type or a malformed
            message.
    """
    content = Scan(
        bag=open_bag(path), state=Series(), command=Series(), instruction=Series(), status=Series(),
        cameras={name: Series() for name in names.cameras},
    )  # fmt: skip
    commands = {topic: Series() for topic in names.command}
    readers = _readers(content, commands, names, arm, max_age_s)
    named = [names.state, *names.instruction, names.status, *names.command]
    named += [topic for topics in names.cameras.values() for topic in topics]
    if len(readers) < len(named):
        twice = next(topic for topic in named if named.count(topic) > 1)
        raise ValueError(f"topic {twice} is named for two things; give each a topic of its own")
    decoders = DecoderFactory()
    counts: Counter[str] = Counter()
    for message in content.bag.messages():
        channel = content.bag.channels[message.channel_id]
        if channel.topic not in readers:
            continue
        kinds, series, read = readers[channel.topic]
        schema = content.bag.schemas.get(channel.schema_id)
        what = f"{path}: {channel.topic}"
        if schema is None or schema.name not in kinds:
            got = schema.name if schema else "no type"
            raise ValueError(f"{what} is {got}, expected {' or '.join(kinds)}; name another topic")
        if series.topic not in ("", channel.topic):
            raise ValueError(
                f"{path}: messages on both {series.topic} and {channel.topic}; name one of them "
                "with --camera-topic"
            )
        try:
            arrives = channel.topic in names.command  # a trajectory's stamp is where it begins
            stamp = 0 if arrives else convert.stamp_ns(message.data)
        except ValueError as error:
            raise ValueError(f"{what}: {error}; leave it out") from error
        stamp = stamp or message.log_time
        if kinds == IMAGES:
            value: Any = counts[channel.topic]
            counts[channel.topic] += 1
        else:
            decoded = _decode(decoders, channel, schema, message, what)
            value = read(decoded, f"{what} at {stamp / 1e9:.3f} s")
            if value is None and kinds == (STATE,):
                continue  # the other joints are still to come
        series.add(channel.topic, stamp, value)
    first, *others = commands.values()
    heard = [one for one in ([first] if first.stamps else others) if one.stamps]
    if len(heard) > 1:
        raise ValueError(
            f"{path}: messages on both {heard[0].topic} and {heard[1].topic}; name one of them "
            "with --command-topic"
        )
    return replace(content, command=heard[0] if heard else content.command)


def _readers(
    content: Scan, commands: Mapping[str, Series], names: Names, arm: Driver, max_age_s: float
) -> dict[str, tuple[tuple[str, ...], Series, Callable[[Any, str], Any]]]:
    """Return types, series and reader of every topic."""
    joints, merged = arm.joints, JointStates(arm.names, np.inf)

    def state(message: Any, what: str) -> np.ndarray | None:
        if len(arm.controllers) == 1:
            return convert.by_name(message.name, message.position, arm.names, what)
        stamp = message.header.stamp
        now_s = stamp.sec + 1e-9 * stamp.nanosec
        merged.take(now_s, 0.0, message.name, message.position)
        fresh = now_s - merged.times_s <= max_age_s
        return merged.pose.copy() if fresh.all() else None

    def command(message: Any, what: str) -> np.ndarray:
        names_of = (
            arm.names if set(getattr(message, "joint_names", ())) & set(arm.names) else joints
        )
        if hasattr(message, "data"):
            return convert.by_name(joints[: len(message.data)], message.data, joints, what)
        # The safety node's trajectories have velocities and begin a tick before they are sent: the
        # third point is the next pose of the arm.
        if not message.points or (len(message.points) != 1 and not message.points[0].velocities):
            raise ValueError(
                f"{what}: got {len(message.points)} points without velocities in a command, "
                "expected one, or a trajectory of the safety node (is it a chunk? --command-topic "
                "names what was sent to the arm)"
            )
        _, values = convert.trajectory(
            message.joint_names, [message.points[:3][-1].positions], [0.0], names_of, what
        )
        return values[0]

    def checked(read: Callable[[Any, str], np.ndarray | None]) -> Callable[[Any, str], Any]:
        def read_checked(message: Any, what: str) -> np.ndarray | None:
            try:
                values = read(message, what)
                if values is None:
                    return None
                wrong = np.flatnonzero(~np.isfinite(values))
                if len(wrong):
                    raise ValueError(f"{what}: joint {joints[wrong[0]]!r} is {values[wrong[0]]}")
                return values
            except ValueError as error:
                hint = "name the arm that was recorded with --robot, or leave the bag out"
                raise ValueError(f"{error}; expected {', '.join(arm.names)}: {hint}") from error

        return read_checked

    readers: dict[str, tuple[tuple[str, ...], Series, Callable[[Any, str], Any]]] = {
        names.state: ((STATE,), content.state, checked(state)),
        names.status: ((STATUS,), content.status, lambda message, _: _by_person(message)),
    }
    frame_id = lambda message, _: message.frame_id  # noqa: E731
    unread = lambda message, _: None  # noqa: E731  images are decoded later
    readers |= dict.fromkeys(names.instruction, ((INSTRUCTION,), content.instruction, frame_id))
    readers |= {topic: (COMMANDS, one, checked(command)) for topic, one in commands.items()}
    for camera, topics in names.cameras.items():
        readers |= dict.fromkeys(topics, (IMAGES, content.cameras[camera], unread))
    return readers


def _decode(
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


def _by_person(message: Any) -> bool:
    pairs = {pair.key: pair.value for status in message.status for pair in status.values}
    return pairs.get("source") == "teleop"


def missing_topics(content: Scan, names: Names) -> str:
    """Return a sentence about a missing state, command or camera; empty if none is missing."""
    wanted = [(names.state,), names.command, *names.cameras.values()]
    for (what, series), topics in zip(content.required.items(), wanted, strict=True):
        if not series.stamps:
            channels = {channel.topic for channel in content.bag.channels.values()}
            present = ", ".join(sorted(channels)) or "none"
            if not content.bag.closed:
                present += f" (it was cut off after {content.bag.whole} whole bytes)"
            return (
                f"{content.bag.path}: no message of the {what} on {' or '.join(topics)}; the bag "
                f"has {present}: name the topic with an option (vla convert --help)"
            )
    return ""


class ImageReader:
    """Images of one camera in a bag, read once in order; `close` closes the file."""

    def __init__(self, bag: Bag, series: Series, height: int, width: int) -> None:
        self._bag, self._series, self._size = bag, series, (height, width)
        self._all = open_bag(bag.path).messages()
        self._messages = enumerate(self._of_topic())
        self._at = -1
        self._pixels = np.zeros((height, width, 3), np.uint8)

    def read(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield RGB u8 [h, w, 3] for each of some non-decreasing rows of the series.

        Raises:
            ValueError: an image is damaged or has an unknown encoding.
        """
        for row in rows:
            wanted = self._series.values[row]
            while self._at < wanted:
                self._at, message = next(self._messages)
                if self._at == wanted:
                    stamp_s = self._series.stamps[row] / 1e9
                    what = f"{self._bag.path}: {self._series.topic} at {stamp_s:.3f} s"
                    pixels = _image(self._bag, message, what)
                    self._pixels = convert.center_crop_resize(pixels, *self._size)
            yield self._pixels

    def close(self) -> None:
        """Close the file, which was read no further than the last image that was asked for."""
        self._all.close()

    def _of_topic(self) -> Iterator[Message]:
        for message in self._all:
            if self._bag.channels[message.channel_id].topic == self._series.topic:
                yield message


def _image(bag: Bag, message: Message, what: str) -> np.ndarray:
    channel = bag.channels[message.channel_id]
    schema = bag.schemas[channel.schema_id]
    image = _decode(DecoderFactory(), channel, schema, message, what)
    if schema.name == IMAGES[0]:
        return convert.raw_image(
            image.data,
            image.height,
            image.width,
            image.step,
            image.encoding,
            what,
            is_bigendian=bool(image.is_bigendian),
        )
    return _decode_compressed(bytes(image.data), what)


def _decode_compressed(data: bytes, what: str) -> np.ndarray:
    """Return RGB u8 [h, w, 3] of a JPEG or PNG that is whole and not too large."""
    if not data.startswith((b"\xff\xd8", b"\x89PNG\r\n\x1a\n")):
        raise ValueError(f"{what}: begins with {data[:4]!r}, expected jpeg or png; leave it out")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise ValueError(f"{what}: damaged image ({error.err}); leave the bag out") from error
    whole = data.rstrip(b"\0").endswith((b"\xff\xd9", b"IEND\xaeB`\x82"))
    if pixels is None or not whole or pixels.shape[0] * pixels.shape[1] > MOST_PX:
        raise ValueError(f"{what}: damaged image ({len(data)} bytes); leave the bag out")
    return pixels[..., ::-1]
