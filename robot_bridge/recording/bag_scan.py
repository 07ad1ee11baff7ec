"""Reads a bag's messages for a data set: numbers at once, images on demand.

Bags are those of the node `recorder`, or of rosbag2 with the same topics.
`robot_bridge.recording.convert_bag` makes a data set of them.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mcap.records import Message
from mcap_ros2.decoder import DecoderFactory
from PIL import Image

from robot_bridge.launching.driver import Driver
from robot_bridge.recording.mcap_reader import Bag, open_bag
from robot_bridge.sensing import convert
from robot_bridge.sensing.joint_states import JointStates
from vla.contracts.specs import MAX_IMAGE_PX

STATE = "sensor_msgs/msg/JointState"
FORWARD = "std_msgs/msg/Float64MultiArray"
"""The only type without a stamp."""
COMMANDS = ("trajectory_msgs/msg/JointTrajectory", FORWARD)
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
INSTRUCTION = "std_msgs/msg/Header"
STATUS = "diagnostic_msgs/msg/DiagnosticArray"
SAFETY_COMMAND = "safety_node/command"
"""Topic of the safety node with the next pose of the arm under the robot's names."""


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
    missing_joint: str = ""
    """Sentence about a joint that no message of joint states has; "" if none is missing."""

    @property
    def required(self) -> dict[str, Series]:
        """What every frame needs, by name."""
        cameras = {f"camera {name}": series for name, series in self.cameras.items()}
        return {"state": self.state, "command": self.command, **cameras}


class _States:
    """Reads joint states; those of arm and gripper may be in messages of their own."""

    def __init__(self, arm: Driver, max_age_s: float) -> None:
        self.arm, self.max_age_s = arm, max_age_s
        self.merged = JointStates(arm.names, np.inf)
        self.parts: set[str] = set()
        """Joints of messages that had not all."""

    def read(self, message: Any, what: str) -> np.ndarray | None:
        """Return the pose f64 [u], None until all joints are known."""
        names = self.arm.names
        if set(names) <= set(message.name):
            return convert.by_name(message.name, message.position, names, what)
        self.parts |= set(message.name)
        if not set(names) & set(message.name):
            return None  # of another arm
        now_s = message.header.stamp.sec + 1e-9 * message.header.stamp.nanosec
        self.merged.take(now_s, 0.0, message.name, message.position)
        fresh = now_s - self.merged.times_s <= self.max_age_s
        return self.merged.pose.copy() if fresh.all() else None

    def add(self, series: Series, topic: str, stamp: int, value: np.ndarray | None) -> None:
        """Append a pose; one of the same time as the last takes its place if it is a part."""
        if value is None:
            return
        if self.parts and series.stamps[-1:] == [stamp]:
            series.values[-1] = value
        else:
            series.add(topic, stamp, value)

    def missing(self, series: Series) -> str:
        """Return what joint was in no message, "" if none is missing or no message came."""
        missing = [name for name in self.arm.names if name not in self.parts]
        if not self.parts or not missing or series.stamps:
            return ""
        return (
            f"joint {missing[0]!r} is missing; got {', '.join(sorted(self.parts))}; expected "
            f"{', '.join(self.arm.names)}: name the arm that was recorded with --robot and --driver"
        )


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
    states = _States(arm, max_age_s)
    readers = _readers(content, commands, names, arm, states)
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
        if kinds == (STATE,):
            states.add(series, channel.topic, stamp, value)
        else:
            series.add(channel.topic, stamp, value)
    missing = states.missing(content.state)
    return replace(content, command=_chosen(commands, path), missing_joint=missing)


def _chosen(commands: Mapping[str, Series], path: Path) -> Series:
    """Return the commands that count: those of the first topic, or of the only other one."""
    first, *others = commands.values()
    heard = [one for one in ([first] if first.stamps else others) if one.stamps]
    if len(heard) > 1:
        raise ValueError(
            f"{path}: messages on both {heard[0].topic} and {heard[1].topic}; name one of them "
            "with --command-topic"
        )
    return heard[0] if heard else first


def _readers(
    content: Scan, commands: Mapping[str, Series], names: Names, arm: Driver, states: _States
) -> dict[str, tuple[tuple[str, ...], Series, Callable[[Any, str], Any]]]:
    """Return types, series and reader of every topic."""
    joints = arm.joints

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
        names.state: ((STATE,), content.state, checked(states.read)),
        names.status: ((STATUS,), content.status, lambda message, _: _by_person(message)),
    }
    frame_id = lambda message, _: message.frame_id  # noqa: E731
    unread = lambda message, _: None  # noqa: E731  images are decoded later
    readers |= dict.fromkeys(names.instruction, ((INSTRUCTION,), content.instruction, frame_id))
    for topic, series in commands.items():
        # The safety node says the robot's own names, a controller is told the driver's.
        called = joints if topic.endswith(SAFETY_COMMAND) else arm.names
        readers[topic] = COMMANDS, series, checked(partial(_pose_of_command, called))
    for camera, topics in names.cameras.items():
        readers |= dict.fromkeys(topics, (IMAGES, content.cameras[camera], unread))
    return readers


def _pose_of_command(names: tuple[str, ...], message: Any, what: str) -> np.ndarray:
    """Return the next pose f64 [u] of the arm in a command for joints of these names."""
    if hasattr(message, "data"):
        return convert.by_name(names[: len(message.data)], message.data, names, what)
    # The safety node's trajectories have velocities and begin a tick before they are sent: the
    # third point is the next pose of the arm.
    points = message.points
    if not points or (len(points) != 1 and not points[0].velocities):
        raise ValueError(
            f"{what}: got {len(points)} points without velocities in a command, expected one, or a "
            "trajectory of the safety node (is it a chunk? --command-topic names what was sent to "
            "the arm)"
        )
    last = [points[:3][-1].positions]
    return convert.trajectory(message.joint_names, last, [0.0], names, what)[1][0]


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
    if content.missing_joint:
        return f"{content.bag.path}: {names.state}: {content.missing_joint}"
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
        with Image.open(io.BytesIO(data)) as header:
            width, height = header.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{what}: damaged image ({error}); leave the bag out") from error
    if height * width > MAX_IMAGE_PX:
        raise ValueError(
            f"{what}: image is {height} x {width}, expected at most {MAX_IMAGE_PX:,} pixels; leave "
            "the bag out"
        )
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise ValueError(f"{what}: damaged image ({error.err}); leave the bag out") from error
    whole = data.rstrip(b"\0").endswith((b"\xff\xd9", b"IEND\xaeB`\x82"))
    if pixels is None or not whole:
        raise ValueError(f"{what}: damaged image ({len(data)} bytes); leave the bag out")
    return pixels[..., ::-1]
