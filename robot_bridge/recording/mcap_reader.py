"""Reads MCAP files record by record, and repairs a file that was cut off.

A file that a kill cut off has no index and may end within a chunk: all records before it are
complete. A closed file with a malformed record is damaged, and refused.
"""

import io
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Message, Metadata, Schema
from mcap.stream_reader import breakup_chunk

from robot_bridge.recording.mcap_writer import McapWriter
from vla.data.limits import MAX_CHUNK_BYTES
from vla.utils import files

MAGIC = b"\x89MCAP0\r\n"
_HEAD = struct.Struct("<BQ")
_READERS: dict[int, Callable[[ReadDataStream], Any]] = {
    Opcode.SCHEMA: Schema.read,
    Opcode.CHANNEL: Channel.read,
    Opcode.METADATA: Metadata.read,
}
_WRONG = (
    McapError, ValueError, KeyError, struct.error, RuntimeError, UnicodeDecodeError, MemoryError,
    OverflowError, zlib.error, zstandard.ZstdError,
)  # fmt: skip
"""Errors of reading a damaged record; that of lz4 is RuntimeError."""


@dataclass(kw_only=True)
class Bag:
    """A file while it is read: its topics, and how much of it was complete."""

    path: Path
    closed: bool
    """Whether its writer closed it, so that it ends with an index."""
    size: int
    """Bytes."""
    whole: int = 0
    """Bytes up to the end of the last complete record that was read."""
    channels: dict[int, Channel] = field(default_factory=dict)
    """Topics that were read so far, by number."""
    schemas: dict[int, Schema] = field(default_factory=dict)
    """Types that were read so far, by number."""
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    """Metadata records that were read so far, by name."""

    def messages(self) -> Generator[Message, None, None]:
        """Yield the messages in the order of the file, up to its last complete record.

        Raises:
            ValueError: the file was closed and is damaged inside.
        """
        with self.path.open("rb") as file:
            for opcode, data, end in self._records(file):
                try:
                    records = list(_inner(opcode, data))
                except _WRONG as error:
                    if not self.closed:
                        return
                    raise ValueError(
                        f"{self.path}: damaged at byte {self.whole} of {self.size} ({error}); copy "
                        "it again, or leave it out"
                    ) from error
                for record in records:
                    if isinstance(record, Message):
                        if record.channel_id not in self.channels:
                            raise ValueError(
                                f"{self.path}: damaged: a message of channel {record.channel_id}, "
                                "which nothing describes; copy it again, or leave it out"
                            )
                        yield record
                    else:
                        self._keep(record)
                self.whole = end

    def _records(self, file: io.BufferedReader) -> Iterator[tuple[int, bytes, int]]:
        """Yield opcode, content and end of every complete record."""
        at = self.whole = len(MAGIC)
        file.seek(at)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            opcode, length = _HEAD.unpack(head)
            end = at + _HEAD.size + length
            # A power cut may leave zeros in place of the last chunk: no record has opcode 0.
            if opcode == 0 or end > self.size:
                break
            if opcode == Opcode.DATA_END:
                self.whole = self.size if self.closed else at
                return
            yield opcode, file.read(length), end
            at = end
        if self.closed:
            raise ValueError(
                f"{self.path}: damaged at byte {at} of {self.size}; copy it again, or leave it out"
            )

    def _keep(self, record: Any) -> None:
        if isinstance(record, Schema):
            self.schemas[record.id] = record
        elif isinstance(record, Channel):
            self.channels[record.id] = record
        elif isinstance(record, Metadata):
            self.metadata[record.name] = dict(record.metadata)


def open_bag(path: Path) -> Bag:
    """Return an MCAP file to be read.

    Raises:
        ValueError: there is no such file, or it is no MCAP file.
    """
    if not path.is_file():
        state = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path}: {state}, expected an MCAP file; name one, such as BAG.mcap")
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
        file.seek(max(0, size - len(MAGIC)))
        closed = file.read() == MAGIC and size >= 2 * len(MAGIC)
    if begin != MAGIC:
        what = "is empty" if not size else f"begins with {begin!r}"
        raise ValueError(
            f"{path}: {what}, expected an MCAP file ({MAGIC!r}); a bag in another storage becomes "
            "one with ros2 bag convert"
        )
    return Bag(path=path, closed=closed, size=size)


def repair(path: Path) -> int:
    """Close a file that was cut off after its last complete message; return their number.

    The file is replaced atomically, so a kill leaves it as it was or repaired.

    Raises:
        ValueError: it is no MCAP file.
        OSError: the disk is full.
    """
    bag = open_bag(path)
    new = path.with_name(f".{path.name}.repair")
    new.unlink(missing_ok=True)
    writer = McapWriter(new)
    declared: set[int] = set()
    try:
        for message in bag.messages():
            channel = bag.channels[message.channel_id]
            if channel.id not in declared:
                declared.add(channel.id)
                schema = bag.schemas[channel.schema_id]
                qos = channel.metadata.get("offered_qos_profiles", "")
                writer.add_topic(channel.topic, schema.name, qos, schema.data.decode())
            writer.write(channel.topic, message.data, message.log_time, message.publish_time)
        writer.close(bag.metadata)
        new.replace(path)
    finally:
        writer.abandon()
        new.unlink(missing_ok=True)
    files.sync(path.parent)
    return writer.messages


def _inner(opcode: int, data: bytes) -> Iterator[Any]:
    """Yield the records of a chunk, or the record itself if it is of a read kind."""
    stream = ReadDataStream(io.BytesIO(data))
    if opcode == Opcode.CHUNK:
        yield from breakup_chunk(_decompressed(Chunk.read(stream)), validate_crc=True)
    elif opcode == Opcode.MESSAGE:
        yield Message.read(stream, len(data))
    elif opcode in _READERS:
        yield _READERS[opcode](stream)


def _decompressed(chunk: Chunk) -> Chunk:
    """Return a chunk without its compression, which the library would undo without any bound."""
    size = chunk.uncompressed_size
    if size > MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {size:,} bytes, expected at most {MAX_CHUNK_BYTES:,}")
    if chunk.compression == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(chunk.data) as reader:
            data = reader.read(size + 1)
    elif chunk.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
    else:
        return chunk
    if len(data) != size:
        raise ValueError(f"a chunk of {len(data):,} bytes or more, its head says {size:,}")
    return replace(chunk, compression="", data=data)
