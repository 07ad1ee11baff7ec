"""Node `recorder`: writes the topics of docs/topics.md into one MCAP file per episode.

It decodes only messages that start episodes or name the source that leads the arm.
`robot_bridge.recording.recorder` opens and closes the files.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from std_msgs.msg import Header, String
from std_srvs.srv import Trigger

from robot_bridge.launching import driver
from robot_bridge.launching.node_settings import check, chosen, ranged
from robot_bridge.nodes import common
from robot_bridge.nodes.controllers import message_type
from robot_bridge.recording.recorder import Entry, Kind, Recording, Topic
from vla.contracts import robot_file

RMWError = rclpy_implementation.RMWError
SETTLE_S = 0.25
"""Period in s of flushes and of checks of the room on the disk."""
QUEUE = 200
"""Queue of a topic, for slow moments of the disk."""
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
STATUS = "diagnostic_msgs/msg/DiagnosticArray"
COMMANDS = tuple((driver.TOPICS[kind], driver.TYPES[kind]) for kind in ("trajectory", "forward"))
"""Topics of the controllers, without a driver file, with their types."""
LATCHED = ("robot_description", "tf_static")
"""Topics whose publishers say the last message to a late subscriber."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `recorder`."""

    folder: str = "recordings"
    """Folder of the episodes; created if missing."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Names of the cameras."""
    images: str = chosen("raw", "raw", "compressed")
    """Recorded images: raw (large, exact), or compressed as the driver sends them."""
    auto: bool = True
    """Whether every message on `instruction` begins an episode and ends the one before."""
    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    driver: str = ""
    """Driver file, or its name under launch/drivers, with the controllers."""
    topics: tuple[str, ...] = ()
    """Further topics, each as TOPIC=TYPE, such as /tf=tf2_msgs/msg/TFMessage."""
    least_free_gb: float = ranged(1.0, 0.0, 1e6)
    """Room in GB below which no episode begins and the running one ends."""

    def __post_init__(self) -> None:
        check(self)


def topics(settings: Settings, commands: Sequence[tuple[str, str]] = COMMANDS) -> list[Topic]:
    """Return the recorded topics by relative names; some may have no publisher.

    Args:
        settings: The recorder's.
        commands: Topics of the controllers, with their types.

    Raises:
        ValueError: a further topic is not TOPIC=TYPE, or recorded anyway.
    """
    rows: list[tuple[str, str, Kind]] = [("joint_states", "sensor_msgs/msg/JointState", "sensor")]
    for camera in settings.cameras:
        image = ("image_raw", "sensor_msgs/msg/Image")
        if settings.images == "compressed":
            image = ("image_raw/compressed", "sensor_msgs/msg/CompressedImage")
        for name, type_name in (image, ("camera_info", "sensor_msgs/msg/CameraInfo")):
            rows.append((f"cameras/{camera}/{name}", type_name, "sensor"))
    rows += [
        ("action_chunk", TRAJECTORY, "command"),
        ("teleop", TRAJECTORY, "command"),
        ("safety_node/command", TRAJECTORY, "command"),
        *((topic, type_name, "command") for topic, type_name in commands),
        ("speed_scaling", "std_msgs/msg/Float64", "command"),
        ("instruction", "std_msgs/msg/Header", "latched"),
        ("safety_node/status", STATUS, "latched"),
        ("policy_node/status", STATUS, "latched"),
        ("monitor/status", STATUS, "latched"),
        ("intervention_request", "std_msgs/msg/Header", "latched"),
        ("sim_arm/episode", "std_msgs/msg/String", "latched"),
    ]
    for text in settings.topics:
        name, _, type_name = text.partition("=")
        if not name or type_name.count("/") != 2 or name in [row[0] for row in rows]:
            raise ValueError(
                f"topics: got {text!r}, expected a topic that is not recorded yet, as TOPIC=TYPE, "
                "such as /tf=tf2_msgs/msg/TFMessage"
            )
        rows.append((name, type_name, "latched" if name.endswith(LATCHED) else "sensor"))
    return [Topic(name=name, type_name=type_name, kind=kind) for name, type_name, kind in rows]


class Recorder(Node):
    """Records topics into one MCAP file per episode."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self._settings: Settings = common.parameters(self, Settings)
        s, notes = self._settings, {}
        commands = COMMANDS
        if s.driver:
            arm = driver.read(s.driver, robot_file.load(s.robot))
            commands = tuple((c.topic, driver.TYPES[c.type]) for c in arm.controllers if c.is_topic)
            notes = {"driver": driver.file_of(s.driver).read_text()}
        wanted = topics(s, commands)
        full = {topic.name: self.resolve_topic_name(topic.name) for topic in wanted}
        self._recording = Recording(
            Path(self._settings.folder).expanduser(),
            [replace(topic, name=full[topic.name]) for topic in wanted],
            int(self._settings.least_free_gb * 1e9),
            notes,
        )
        cut = [entry.file for entry in self._recording.entries if entry.cut]
        if cut:
            self.get_logger().info(f"episodes that a kill cut off: {', '.join(cut)}")
        self._task = ""
        self._trouble = ""
        self._lost = dict.fromkeys(full.values(), 0)
        for topic in wanted:
            self._subscribe(topic, full[topic.name])
        self.create_service(Trigger, "~/start", self._start)
        self.create_service(Trigger, "~/stop", self._stop)
        common.create_timer(self, SETTLE_S, self._settle)
        common.publish_diagnostics(self, self._diagnostics)

    def destroy_node(self) -> None:
        """Close the running episode, then the node."""
        self._end()
        self._recording.close()
        super().destroy_node()

    def _subscribe(self, topic: Topic, full: str) -> None:
        kind = message_type(topic.type_name)
        special = {
            "instruction": self._on_instruction, "safety_node/status": self._on_status,
            "sim_arm/episode": self._on_episode,
        }  # fmt: skip
        take = partial(self._guarded, special.get(topic.name, self._take), full)
        events = SubscriptionEventCallbacks(message_lost=partial(self._count_lost, full))
        self.create_subscription(
            kind, topic.name, take, _qos(topic), raw=True, event_callbacks=events
        )

    def _guarded(self, take: Callable[[str, bytes], None], topic: str, data: bytes) -> None:
        """Take a message; one that is damaged is left out and ends nothing."""
        try:
            take(topic, data)
        except (ValueError, RMWError) as error:
            self.get_logger().error(
                f"{topic}: a message of {len(data)} bytes is damaged ({error}); it is left out",
                throttle_duration_sec=1.0,
            )

    def _take(self, topic: str, data: bytes) -> None:
        """Record a message; a full disk ends the episode, not the node."""
        try:
            self._recording.receive(topic, data, self._now_ns())
        except OSError as error:
            self._give_up(str(error))

    def _on_instruction(self, topic: str, data: bytes) -> None:
        if self._settings.auto:
            self._end()  # first: the new instruction is no part of the old episode
        self._take(topic, data)
        self._task = deserialize_message(data, Header).frame_id
        if self._settings.auto and self._task:  # an empty one ends the task
            self._begin()

    def _on_status(self, topic: str, data: bytes) -> None:
        self._take(topic, data)
        for status in deserialize_message(data, DiagnosticArray).status:
            for pair in status.values:
                if pair.key == "source":
                    self._recording.set_source(pair.value, self._now_ns())

    def _on_episode(self, topic: str, data: bytes) -> None:
        self._take(topic, data)
        try:
            episode = json.loads(deserialize_message(data, String).data)
        except json.JSONDecodeError:
            return  # it is recorded; only its success is unknown
        success = episode.get("success") if isinstance(episode, dict) else None
        if isinstance(success, bool):
            self._recording.set_success(success)

    def _start(self, request: Any, response: Any) -> Any:
        response.success = self._begin()
        running = self._recording.running
        response.message = f"recording {running.file}" if running else self._trouble
        return response

    def _stop(self, request: Any, response: Any) -> Any:
        entry = self._end()
        response.success = entry is not None
        response.message = f"closed {entry.file}" if entry else self._trouble or "nothing runs"
        return response

    def _begin(self) -> bool:
        self._end()
        try:
            self._recording.begin(self._task, self._now_ns())
        except (ValueError, OSError) as error:
            self._give_up(str(error))
            return False
        self._trouble = ""
        return True

    def _end(self) -> Entry | None:
        try:
            entry = self._recording.end(self._now_ns())
        except OSError as error:
            self._give_up(str(error))
            return None
        if entry is not None:
            self.get_logger().info(f"closed {entry.file}: {entry.messages} messages")
        return entry

    def _settle(self) -> None:
        try:
            self._recording.settle()
        except (ValueError, OSError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """End the episode as far as the disk allows, and log the reason."""
        self._trouble = " ".join(why.split())
        self.get_logger().error(self._trouble)
        try:
            self._recording.end(self._now_ns())
        except OSError as error:
            self.get_logger().error(f"left open; the next start closes it: {error}")

    def _count_lost(self, topic: str, event: Any) -> None:
        self._lost[topic] += event.total_count_change

    def _now_ns(self) -> int:
        return self.get_clock().now().nanoseconds

    def _diagnostics(self) -> DiagnosticStatus:
        running = self._recording.running
        values = {
            "episode": running.file if running else "",
            "closed_episodes": len(self._recording.entries),
            "bytes": self._recording.running_bytes,
            "free_gb": self._recording.free_bytes() / 1e9,
            "lost": sum(self._lost.values()),
            **{f"messages {name}": n for name, n in self._recording.counts.items()},
            **{f"lost {name}": n for name, n in self._lost.items() if n},
        }
        level = "error" if self._trouble else "warn" if values["lost"] else "ok"
        message = self._trouble or (f"recording {running.file}" if running else "waiting")
        return common.status("recorder", level, message, values)


def _qos(topic: Topic) -> QoSProfile:
    """Return the QoS of a topic's subscription: as of other subscribers, with a longer queue."""
    sensor, latched = topic.kind == "sensor", topic.kind == "latched"
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=QUEUE,
        reliability=ReliabilityPolicy.BEST_EFFORT if sensor else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the node; return the exit code."""
    return common.run(Recorder, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
