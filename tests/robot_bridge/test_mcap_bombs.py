"""MCAP files that declare little and hold much, or the reverse: refused before it costs memory."""

import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard

from robot_bridge.recording.bag_scan import _decode_compressed
from robot_bridge.recording.mcap_reader import MAGIC, open_bag
from vla.contracts.specs import MAX_IMAGE_PX
from vla.data.limits import MAX_CHUNK_BYTES

ZEROS = bytes(1 << 28)
COMPRESS = {"zstd": zstandard.ZstdCompressor().compress, "lz4": lz4.frame.compress}


def record(opcode: int, content: bytes) -> bytes:
    return struct.pack("<BQ", opcode, len(content)) + content


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def closed_file(path, *records: bytes):
    """Write a file that its writer closed."""
    header, end = record(1, text(b"ros2") + text(b"x")), record(0x0F, struct.pack("<I", 0))
    footer = record(2, struct.pack("<QQI", 0, 0, 0))
    path.write_bytes(MAGIC + header + b"".join(records) + end + footer + MAGIC)
    return path


def chunk(compression: bytes, data: bytes, declared: int) -> bytes:
    head = struct.pack("<QQQI", 0, 0, declared, 0) + text(compression)
    return record(6, head + struct.pack("<Q", len(data)) + data)


def refused(path) -> str:
    """Return why a bag is refused, which must cost less memory than what it expands to."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=path.name) as error:
        list(open_bag(path).messages())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(ZEROS) / 4
    return str(error.value)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_chunk_that_expands_to_more_than_it_declares(tmp_path, kind) -> None:
    path = closed_file(tmp_path / "b.mcap", chunk(kind.encode(), COMPRESS[kind](ZEROS), 1000))
    assert "its head says 1,000" in refused(path)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_chunk_that_declares_more_than_any_recorder_writes(tmp_path, kind) -> None:
    declared = MAX_CHUNK_BYTES + 1
    path = closed_file(tmp_path / "b.mcap", chunk(kind.encode(), COMPRESS[kind](b""), declared))
    assert f"expected at most {MAX_CHUNK_BYTES:,}" in refused(path)


def test_a_message_of_a_channel_that_nothing_describes(tmp_path) -> None:
    message = record(5, struct.pack("<HIQQ", 7, 0, 0, 0) + b"data")
    path = closed_file(tmp_path / "b.mcap", message)
    assert "a message of channel 7, which nothing describes" in refused(path)


def test_a_picture_of_a_gigapixel_is_refused_by_its_header() -> None:
    side = int(MAX_IMAGE_PX**0.5) + 1
    parts = {b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IEND": b""}
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts.items()
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"{side} x {side}, expected at most"):
        _decode_compressed(data, "camera")
