"""Writes MCAP files that rosbag2 and Foxglove open, and that a kill at any moment leaves readable.

Messages are gathered in chunks; a chunk is written whole, at the latest a second after its first
message. `robot_bridge.recording.mcap_reader` reads files, cut off ones included.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mcap.writer import CompressionType, Writer

from robot_bridge.recording.message_definitions import definition

CHUNK_BYTES = 1 << 20
"""Bytes of messages from which a chunk is written."""
CHUNK_S = 1.0
"""Age in s of its first message from which a chunk is written; the most that a kill may lose."""
LIBRARY = "mneme_vla"
_NEVER = 1 << 62  # limit after which the library would write a chunk without flushing it


class McapWriter:
    """One open file of serialized messages (CDR)."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it exists, or cannot be written.
        """
        self.path = path
        self.messages = 0
        """Number of written messages of all topics."""
        self._file = path.open("xb")
        self._writer = Writer(self._file, chunk_size=_NEVER, compression=CompressionType.LZ4)
        self._writer.start(profile="ros2", library=LIBRARY)
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._sequence: dict[str, int] = {}
        self._gathered = 0
        self._since_s = 0.0
        self._writer.flush()

    @property
    def bytes_written(self) -> int:
        """Bytes handed to the system."""
        return self._file.tell()

    def add_topic(self, topic: str, type_name: str, qos: str = "", text: str | None = None) -> None:
        """Declare a topic.

        Args:
            topic: Full name, "/joint_states".
            type_name: "sensor_msgs/msg/JointState".
            qos: QoS of its publishers as rosbag2's YAML (`offered`).
            text: Definition of the type; that of the installed package if None.

        Raises:
            ValueError: the type is not installed.
        """
        if type_name not in self._schemas:
            data = (text if text is not None else definition(type_name)).encode()
            self._schemas[type_name] = self._writer.register_schema(type_name, "ros2msg", data)
        self._channels[topic] = self._writer.register_channel(
            topic, "cdr", self._schemas[type_name], {"offered_qos_profiles": qos}
        )
        self._sequence[topic] = 0

    def write(self, topic: str, data: bytes, log_time_ns: int, publish_time_ns: int) -> None:
        """Add a message (CDR) of a declared topic, with its arrival and its stamp.

        Raises:
            OSError: the disk is full.
        """
        if not self._gathered:
            self._since_s = time.monotonic()
        self._sequence[topic] += 1
        self._writer.add_message(
            self._channels[topic], log_time_ns, data, publish_time_ns, self._sequence[topic]
        )
        self.messages += 1
        self._gathered += len(data)
        if self._gathered >= CHUNK_BYTES:
            self._flush()

    def settle(self) -> None:
        """Write the gathered messages if the first of them is old enough; call it often."""
        if self._gathered and time.monotonic() - self._since_s >= CHUNK_S:
            self._flush()

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        """Add a metadata record."""
        self._flush()
        self._writer.add_metadata(name, dict(values))
        self._writer.flush()

    def close(self, last: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Write metadata by name, gathered messages and the index, and flush to the disk.

        Raises:
            OSError: the disk is full; what is on it can be repaired.
        """
        try:
            for name, values in (last or {}).items():
                self.add_metadata(name, values)
            self._writer.finish()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file as a kill would: without gathered messages, and without an index."""
        self._file.close()

    def _flush(self) -> None:
        self._gathered = 0
        self._writer.flush()


def offered(*, latched: bool, depth: int) -> str:
    """Return a reliable QoS profile in the form of rosbag2's metadata, for a replay."""
    forever = "sec: 9223372036\n    nsec: 854775807"
    return f"""\
- history: keep_last
  depth: {depth}
  reliability: reliable
  durability: {"transient_local" if latched else "volatile"}
  deadline:
    {forever}
  lifespan:
    {forever}
  liveliness: automatic
  liveliness_lease_duration:
    {forever}
  avoid_ros_namespace_conventions: false"""
