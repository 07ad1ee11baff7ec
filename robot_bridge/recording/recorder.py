"""Episodes on disk: one MCAP file per episode, and an index.

A closed file is never opened for writing again; a file that a kill left open is closed when the
next recording begins. This module does not import ROS.
"""

import contextlib
import dataclasses
import fcntl
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from robot_bridge.recording.mcap_reader import open_bag, repair
from robot_bridge.recording.mcap_writer import McapWriter, offered
from robot_bridge.recording.message_definitions import has_stamp
from robot_bridge.sensing.convert import stamp_ns
from vla.utils import files

INDEX = "episodes.json"
CLOSED, OPEN = ".mcap", ".mcap.part"
"""Suffixes of complete files, and of the file being written."""
BEGIN, END = "mneme_vla.begin", "mneme_vla.end"
"""Names of a file's metadata records about its episode."""
Kind = Literal["sensor", "command", "latched"]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A recorded topic."""

    name: str
    """Full name."""
    type_name: str
    """Such as "sensor_msgs/msg/JointState"."""
    kind: Kind
    """Kind of its QoS; every episode begins with the last message of each latched topic."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An episode in the index."""

    file: str
    """Name of its file, in the folder of the index."""
    task: str
    """Instruction."""
    begin_s: float
    """ROS time, as all times."""
    end_s: float
    success: bool | None
    """Outcome by the simulated arm or an operator; None if unknown."""
    messages: int
    """Number of messages of all topics."""
    sources: list[tuple[float, str]]
    """Times from which a source led the arm: policy, teleop or none."""
    cut: bool
    """Whether the recorder was killed, so that only a part of the episode is on disk."""


class Recording:
    """A folder of episodes; at most one is being written.

    Topics have full names, and times are ROS time.
    """

    def __init__(
        self, folder: Path, topics: Iterable[Topic], least_free_bytes: int,
        notes: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Open a folder, create it if missing, and close a file that a kill left open.

        `notes` are written into every file, beside its instruction.

        Raises:
            ValueError: another process records there, or a type is not installed.
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.topics = {topic.name: topic for topic in topics}
        self.counts = dict.fromkeys(self.topics, 0)
        """Number of messages of each topic in the running or the last episode."""
        self._stamped = {name: has_stamp(one.type_name) for name, one in self.topics.items()}
        self._least_free_bytes = least_free_bytes
        self._notes = dict(notes or {})
        self._last: dict[str, bytes] = {}
        self._source = ""
        self._writer: McapWriter | None = None
        self._entry: Entry | None = None
        self._lock = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system frees it on a kill
            self.entries = heal(folder)
            """Closed episodes, oldest first."""
        except BlockingIOError as error:
            self._lock.close()
            raise ValueError(
                f"{folder}: another recorder writes there; stop it or give another folder"
            ) from error
        except (ValueError, OSError):
            self._lock.close()
            raise

    @property
    def running(self) -> Entry | None:
        """The episode that is being written."""
        return self._entry

    @property
    def running_bytes(self) -> int:
        """Bytes of the running episode on disk."""
        return self._writer.bytes_written if self._writer else 0

    def begin(self, task: str, now_ns: int) -> None:
        """Begin an episode with an instruction; a running one is ended first.

        Raises:
            ValueError: there is no task, or too little room on the disk.
            OSError: the disk is full.
        """
        if self._entry is not None:
            self.end(now_ns)
        if not task:
            raise ValueError("no instruction yet: publish one on `instruction`, then start again")
        self._check_room()
        number = 1 + max((_number(path) for path in self.folder.glob("episode-*")), default=0)
        name = f"episode-{number:06d}"
        writer = McapWriter(self.folder / f"{name}{OPEN}")
        for topic in self.topics.values():
            latched, command = topic.kind == "latched", topic.kind == "command"
            qos = offered(latched=latched, depth=1 if latched or command else 10)
            writer.add_topic(topic.name, topic.type_name, qos)
        writer.add_metadata(BEGIN, {**self._notes, "task": task, "begin_ns": str(now_ns)})
        self._writer, self.counts = writer, dict.fromkeys(self.topics, 0)
        self._entry = Entry(
            file=f"{name}{CLOSED}", task=task, begin_s=now_ns / 1e9, end_s=now_ns / 1e9,
            success=None, messages=0, cut=False,
            sources=[(now_ns / 1e9, self._source)] if self._source else [],
        )  # fmt: skip
        for topic_name, data in self._last.items():
            self._write(topic_name, data, now_ns)

    def receive(self, topic: str, data: bytes, now_ns: int) -> None:
        """Receive a serialized message (CDR), which is written if an episode runs.

        Raises:
            OSError: the disk is full.
        """
        if self.topics[topic].kind == "latched":
            self._last[topic] = data
        if self._entry is not None:
            self._write(topic, data, now_ns)

    def set_source(self, source: str, now_ns: int) -> None:
        """Note the source that leads the arm from now on: policy, teleop or none."""
        self._source = source
        entry = self._entry
        if entry is not None and (not entry.sources or entry.sources[-1][1] != source):
            changes = [*entry.sources, (now_ns / 1e9, source)]
            self._entry = dataclasses.replace(entry, sources=changes)

    def set_success(self, success: bool) -> None:
        """Mark the running episode as a success or a failure."""
        if self._entry is not None:
            self._entry = dataclasses.replace(self._entry, success=success)

    def end(self, now_ns: int) -> Entry | None:
        """Close the running episode and return its entry; None if none runs.

        Raises:
            OSError: the disk is full; what is on it is closed when the next recording begins.
        """
        if self._entry is None or self._writer is None:
            return None
        entry, writer = self._entry, self._writer
        self._entry = self._writer = None
        entry = dataclasses.replace(entry, end_s=now_ns / 1e9, messages=writer.messages)
        writer.close({END: {"entry": json.dumps(dataclasses.asdict(entry))}})
        writer.path.rename(self.folder / entry.file)
        files.sync(self.folder)
        self.entries = [*self.entries, entry]
        write_index(self.folder, self.entries)
        return entry

    def settle(self) -> None:
        """Flush buffered messages and check the room on the disk; call it a few times per second.

        Raises:
            ValueError: too little room on the disk; end the episode.
            OSError: the disk is full.
        """
        if self._writer is not None:
            self._writer.settle()
            self._check_room()

    def free_bytes(self) -> int:
        """Return the free bytes on the disk."""
        return shutil.disk_usage(self.folder).free

    def close(self) -> None:
        """Unlock the folder; a running episode has to be ended before."""
        self._lock.close()

    def _write(self, topic: str, data: bytes, now_ns: int) -> None:
        assert self._writer is not None
        stamp = stamp_ns(data) if self._stamped[topic] else 0
        self._writer.write(topic, data, now_ns, stamp or now_ns)
        self.counts[topic] += 1

    def _check_room(self) -> None:
        free = self.free_bytes()
        if free < self._least_free_bytes:
            raise ValueError(
                f"{self.folder}: {free / 1e9:.2f} GB free, expected at least "
                f"{self._least_free_bytes / 1e9:g} GB; free space or give another folder"
            )


def heal(folder: Path) -> list[Entry]:
    """Close a file that a kill left open, and return the entries of all closed episodes.

    Files that are missing in the index, because of a kill between the two writes, are added.

    Raises:
        ValueError: the index is damaged.
    """
    for leftover in folder.glob(f".episode-*{OPEN}.repair"):
        leftover.unlink()
    indexed = {entry.file: entry for entry in read_index(folder)}
    entries = dict(indexed)
    for path in sorted(folder.glob(f"episode-*{OPEN}")):
        closed = path.with_name(path.name.removesuffix(OPEN) + CLOSED)
        try:
            repair(path)
        except ValueError:  # not even its first bytes were on disk
            path.unlink()
            continue
        path.rename(closed)
    for path in sorted(folder.glob(f"episode-*{CLOSED}")):
        if path.name not in indexed:
            entries[path.name] = _entry(path)
    ordered = [entries[name] for name in sorted(entries)]
    if entries != indexed:
        write_index(folder, ordered)
    return ordered


def read_index(folder: Path) -> list[Entry]:
    """Return the entries of a folder's index; none if there is no index.

    Raises:
        ValueError: it is damaged.
    """
    file = folder / INDEX
    try:
        rows = json.loads(file.read_text())["episodes"]
        return [_from_row(row) for row in rows]
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: damaged ({error}); delete it, and it is rebuilt from the episodes"
        ) from error


def write_index(folder: Path, entries: Iterable[Entry]) -> None:
    """Replace the index atomically."""
    rows = [dataclasses.asdict(entry) for entry in entries]
    files.write_text(folder / INDEX, json.dumps({"format": 1, "episodes": rows}, indent=1))


def _from_row(row: dict[str, Any]) -> Entry:
    return Entry(**{**row, "sources": [(float(s), str(who)) for s, who in row["sources"]]})


def _entry(path: Path) -> Entry:
    """Return a file's entry, from its metadata, or from its messages if it was cut off."""
    bag = open_bag(path)
    times = [message.log_time for message in bag.messages()]
    with contextlib.suppress(KeyError, TypeError, ValueError):  # an episode that was not ended
        return _from_row(json.loads(bag.metadata[END]["entry"]))
    begin = bag.metadata.get(BEGIN, {})
    begin_ns = int(begin.get("begin_ns", min(times, default=0)))
    return Entry(
        file=path.name, task=begin.get("task", ""), begin_s=begin_ns / 1e9,
        end_s=max(times, default=begin_ns) / 1e9, success=None, messages=len(times), sources=[],
        cut=True,
    )  # fmt: skip


def _number(path: Path) -> int:
    digits = path.name.removeprefix("episode-").split(".")[0]
    return int(digits) if digits.isdecimal() else 0
