"""Episodes on disk: when one begins and ends, what its file is called, what is known of it.

One MCAP file per episode and an index beside them. A file that was closed is never opened for
writing again; one that a kill left open is closed when the next recording begins. No ROS here.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from robot_bridge.mcap_reader import flush_folder, open_bag, repair
from robot_bridge.mcap_writer import McapWriter, offered
from robot_bridge.message_text import has_stamp

INDEX = "episodes.json"
CLOSED, OPEN = ".mcap", ".mcap.part"
"""How files end that are complete, and the one that is being written."""
BEGIN, END = "mneme_vla.begin", "mneme_vla.end"
"""Names of what a file says of its episode."""
Kind = Literal["sensor", "command", "latched"]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """What is recorded."""

    name: str
    """Full name."""
    type_name: str
    """Such as "sensor_msgs/msg/JointState"."""
    kind: Kind
    """How it is published; the last message of a latched topic opens every episode."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the index says of an episode."""

    file: str
    """Name beside the index."""
    task: str
    """Instruction."""
    begin_s: float
    """ROS time."""
    end_s: float
    """ROS time."""
    success: bool | None
    """What the simulated arm or an operator said of it; None if nobody did."""
    messages: int
    """Of all topics."""
    sources: list[tuple[float, str]]
    """Who led the arm from which time on: policy, teleop or none."""
    cut: bool
    """The recorder was killed: the episode goes as far as it was on disk."""


class Recording:
    """A folder of episodes, at most one of which is being written."""

    def __init__(self, folder: Path, topics: Iterable[Topic], least_free_bytes: int) -> None:
        """Take a folder, make it if need be, and close what a kill left open in it.

        Raises:
            ValueError: another process records there, or a type is not installed.
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.topics = {topic.name: topic for topic in topics}
        self.counts = dict.fromkeys(self.topics, 0)
        """Messages of each topic in the running or the last episode."""
        self._stamped = {name: has_stamp(one.type_name) for name, one in self.topics.items()}
        self._least_free_bytes = least_free_bytes
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
        """Bytes of it on disk."""
        return self._writer.bytes_written if self._writer else 0

    def begin(self, task: str, now_ns: int) -> None:
        """Begin an episode; one that runs is ended first.

        Args:
            task: Instruction.
            now_ns: ROS time.

        Raises:
            ValueError: there is no task, or too little room on the disk.
            OSError: the disk is full.
        """
        if self._entry is not None:
            self.end(now_ns)
        if not task:
            raise ValueError("no task yet: publish one on `task`, then start again")
        self._check_room()
        number = 1 + max((_number(path) for path in self.folder.glob("episode-*")), default=0)
        name = f"episode-{number:06d}"
        writer = McapWriter(self.folder / f"{name}{OPEN}")
        for topic in self.topics.values():
            latched, command = topic.kind == "latched", topic.kind == "command"
            qos = offered(reliable=True, latched=latched, depth=1 if latched or command else 10)
            writer.add_topic(topic.name, topic.type_name, qos)
        writer.add_metadata(BEGIN, {"task": task, "begin_ns": str(now_ns)})
        self._writer, self.counts = writer, dict.fromkeys(self.topics, 0)
        self._entry = Entry(
            file=f"{name}{CLOSED}", task=task, begin_s=now_ns / 1e9, end_s=now_ns / 1e9,
            success=None, messages=0, cut=False,
            sources=[(now_ns / 1e9, self._source)] if self._source else [],
        )  # fmt: skip
        for topic_name, data in self._last.items():
            self._write(topic_name, data, now_ns)

    def hear(self, topic: str, data: bytes, now_ns: int) -> None:
        """Take a message as it came from the wire: it is written if an episode runs.

        Args:
            topic: Full name of one of the topics.
            data: CDR.
            now_ns: When it was received, ROS time.

        Raises:
            OSError: the disk is full.
        """
        if self.topics[topic].kind == "latched":
            self._last[topic] = data
        if self._entry is not None:
            self._write(topic, data, now_ns)

    def led_by(self, source: str, now_ns: int) -> None:
        """Mark who leads the arm from now on: policy, teleop or none."""
        self._source = source
        entry = self._entry
        if entry is not None and (not entry.sources or entry.sources[-1][1] != source):
            changes = [*entry.sources, (now_ns / 1e9, source)]
            self._entry = dataclasses.replace(entry, sources=changes)

    def judge(self, success: bool) -> None:
        """Mark the running episode as a success or a failure."""
        if self._entry is not None:
            self._entry = dataclasses.replace(self._entry, success=success)

    def end(self, now_ns: int) -> Entry | None:
        """Close the running episode and return what is known of it; None if none runs.

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
        flush_folder(self.folder)
        self.entries = [*self.entries, entry]
        write_index(self.folder, self.entries)
        return entry

    def settle(self) -> None:
        """Write out what is gathered and see that there is room; call it a few times a second.

        Raises:
            ValueError: too little room on the disk; end the episode.
            OSError: the disk is full.
        """
        if self._writer is not None:
            self._writer.settle()
            self._check_room()

    def free_bytes(self) -> int:
        """Return the room on the disk."""
        return shutil.disk_usage(self.folder).free

    def close(self) -> None:
        """Give the folder back; an episode that runs has to be ended before."""
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


def stamp_ns(data: bytes) -> int:
    """Return the stamp at the front of a message in CDR; 0 where a sender left it empty.

    Four bytes say how it is encoded, the second of them whether little end first.
    """
    sec, nanosec = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return sec * 1_000_000_000 + nanosec


def heal(folder: Path) -> list[Entry]:
    """Close what a kill left open, and return the entries of all closed episodes.

    Files that the index does not know, because the kill came between the two, are taken in.

    Raises:
        ValueError: the index is damaged.
    """
    for leftover in folder.glob(f".episode-*{OPEN}.repair"):
        leftover.unlink()
    known = {entry.file: entry for entry in read_index(folder)}
    found = dict(known)
    for path in sorted(folder.glob(f"episode-*{OPEN}")):
        closed = path.with_name(path.name.removesuffix(OPEN) + CLOSED)
        try:
            repair(path)
        except ValueError:  # not even its first bytes were on disk: there is nothing to keep
            path.unlink()
            continue
        path.rename(closed)
    for path in sorted(folder.glob(f"episode-*{CLOSED}")):
        if path.name not in known:
            found[path.name] = _entry(path)
    entries = [found[name] for name in sorted(found)]
    if found != known:
        write_index(folder, entries)
    return entries


def read_index(folder: Path) -> list[Entry]:
    """Return what the index of a folder says; nothing if there is none.

    Raises:
        ValueError: it is damaged.
    """
    file = folder / INDEX
    try:
        rows = json.loads(file.read_text())["episodes"]
        return [
            Entry(**{**row, "sources": [(float(s), str(who)) for s, who in row["sources"]]})
            for row in rows
        ]
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: damaged ({error}); delete it, it is made anew from the episodes beside it"
        ) from error


def write_index(folder: Path, entries: Iterable[Entry]) -> None:
    """Replace the index at once: a kill leaves the old one or the new one."""
    new = folder / f".{INDEX}.new"
    rows: list[dict[str, Any]] = [dataclasses.asdict(entry) for entry in entries]
    with new.open("w") as file:
        json.dump({"format": 1, "episodes": rows}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / INDEX)
    flush_folder(folder)


def _entry(path: Path) -> Entry:
    """Return what a file says of itself: all if it was ended, else what its messages tell."""
    bag = open_bag(path)
    times = [message.log_time for message in bag.messages()]
    with contextlib.suppress(KeyError, TypeError, ValueError):  # an episode that was not ended
        row = json.loads(bag.metadata[END]["entry"])
        return Entry(**{**row, "sources": [(s, who) for s, who in row["sources"]]})
    said = bag.metadata.get(BEGIN, {})
    begin_ns = int(said.get("begin_ns", min(times, default=0)))
    return Entry(
        file=path.name, task=said.get("task", ""), begin_s=begin_ns / 1e9,
        end_s=max(times, default=begin_ns) / 1e9, success=None, messages=len(times), sources=[],
        cut=True,
    )  # fmt: skip


def _number(path: Path) -> int:
    digits = path.name.removeprefix("episode-").split(".")[0]
    return int(digits) if digits.isdecimal() else 0
