"""Frames between a policy server and its clients: a JSON head and raw arrays, checked before use.

Nothing is unpickled. A frame states its length before any of it is read; one that is too long, is
not JSON, or has arrays of another type or shape than stated is refused. Needs numpy alone.

    magic, head length u32, body length u32 | head: {"say": {...}, "arrays": [...]} | arrays

Spaces after the head align the body to 8 bytes. Arrays are sent and read in place, without copies.
"""

import ipaddress
import json
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PROTOCOL = 4
"""Version of the messages in frames."""
MAGIC = b"MNV1"
PREFIX = struct.Struct(">4sII")
HEAD_BYTES = 1 << 16
"""Longest head."""
BODY_BYTES = 1 << 25
"""Longest body: 32 MiB, a hundred arms with two cameras of 240 pixels."""
ARRAYS, AXES = 16, 6
"""Most arrays of a frame, and axes of an array."""
DTYPES = {name: np.dtype(name) for name in ("uint8", "bool", "int64", "float32", "float64")}
"""Types of arrays."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""Their names; asking numpy for one takes longer than sending a small array."""
ALIGNED = 8
"""Bytes of the longest number type."""
FIRST_BYTES = 1 << 16
"""First size of a connection's buffer."""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


ENCODER = json.JSONEncoder(allow_nan=False)
DECODER = json.JSONDecoder(parse_constant=_no_constant)

Frame = tuple[dict[str, Any], dict[str, np.ndarray]]
"""Message, and arrays by name."""
Part = bytes | memoryview
"""Part of the bytes of a frame."""


class Closed(Exception):
    """The other side has closed the connection between two frames."""


class Malformed(ValueError):
    """The bytes are no frame, and where the next frame begins is unknown."""


def parts(say: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> list[Part]:
    """Return a frame in parts; arrays are not copied.

    Raises:
        ValueError: it is too long, or an array is of a type that is not sent.
    """
    values = {name: np.asarray(value, order="C") for name, value in (arrays or {}).items()}
    wrong = [name for name, value in values.items() if value.dtype not in NAMES]
    if wrong:
        raise ValueError(
            f"{wrong[0]}: got {values[wrong[0]].dtype}, expected one of {', '.join(DTYPES)}"
        )
    described = [(name, NAMES[value.dtype], value.shape) for name, value in values.items()]
    head = ENCODER.encode({"say": dict(say), "arrays": described}).encode()
    head += b" " * (-(PREFIX.size + len(head)) % ALIGNED)
    size = sum(value.nbytes for value in values.values())
    if len(head) > HEAD_BYTES or size > BODY_BYTES:
        raise ValueError(
            f"a frame of {len(head)} and {size} bytes, at most {HEAD_BYTES} and {BODY_BYTES}; send "
            "fewer rows, or smaller images"
        )
    body = (value.reshape(-1).view(np.uint8).data for value in values.values())
    return [PREFIX.pack(MAGIC, len(head), size) + head, *body]


def send(connection: socket.socket, frame: Sequence[Part]) -> None:
    """Send the parts of a frame."""
    if isinstance(connection, ssl.SSLSocket):  # encrypts one piece at a time
        connection.sendall(b"".join(frame))
        return
    sent = connection.sendmsg(frame)
    for part in frame:
        if sent < len(part):
            connection.sendall(part[sent:])
        sent = max(0, sent - len(part))


def unpack(receive: Callable[[int], bytes | memoryview], body_bytes: int = BODY_BYTES) -> Frame:
    """Return the next frame; its arrays lie in the received bytes.

    Args:
        receive: Returns the requested number of bytes, or fewer at the end of the stream.
        body_bytes: Longest body that is read.

    Raises:
        Closed: there is none.
        Malformed: the bytes are no frame.
    """
    prefix = receive(PREFIX.size)
    if not prefix:
        raise Closed
    if len(prefix) < PREFIX.size:
        raise Malformed(f"a prefix of {len(prefix)} bytes, expected {PREFIX.size}")
    magic, head_size, body_size = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Malformed(f"begins with {magic!r}, expected {MAGIC!r}")
    if head_size > HEAD_BYTES or body_size > body_bytes:
        raise Malformed(f"{head_size} and {body_size} bytes, at most {HEAD_BYTES} and {body_bytes}")
    say, described = _head(bytes(_exactly(receive, head_size)))
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in described]
    if sum(sizes) != body_size:
        raise Malformed(f"arrays of {sum(sizes)} bytes in a body of {body_size}")
    body, arrays, begin = np.frombuffer(_exactly(receive, body_size), np.uint8), {}, 0
    for (name, dtype, shape), size in zip(described, sizes, strict=True):
        part = body[begin : begin + size]
        if dtype == np.bool_ and (part > 1).any():
            raise Malformed(f"array {name!r}: bytes that are neither true nor false")
        value = part.view(dtype)
        # A copy if it is not aligned: inference targets need alignment.
        try:
            arrays[name] = (value if value.flags.aligned else value.copy()).reshape(shape)
        except ValueError as error:  # sizes that are too large even for nothing
            raise Malformed(f"array {name!r}: {error}") from error
        begin += size
    return say, arrays


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone; of names only localhost counts."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class FrameReader:
    """Reads the frames of a connection into one buffer that grows to the longest frame.

    Args:
        connection: The connection; its timeout bounds silence.
        frame_s: Longest time from the first byte of a frame to its last, in s.
    """

    def __init__(self, connection: socket.socket, frame_s: float = math.inf) -> None:
        self.connection, self.frame_s = connection, frame_s
        self.buffer = memoryview(bytearray(FIRST_BYTES))
        self.begin = self.end = 0
        self.deadline = math.inf

    @property
    def has_bytes(self) -> bool:
        """Whether bytes of the next frame are here, in this buffer or in that of TLS."""
        tls = self.connection.pending() if isinstance(self.connection, ssl.SSLSocket) else 0
        return self.end > self.begin or tls > 0

    def read(self, body_bytes: int = BODY_BYTES) -> Frame:
        """Return the next frame; its arrays are valid until the next call.

        Raises:
            Closed: there is none.
            Malformed: the bytes are no frame.
            OSError: the connection is gone, was silent for too long, or took too long for a frame.
        """
        left = self.end - self.begin  # bytes of the next frame, sent before the last was answered
        self.buffer[:left] = self.buffer[self.begin : self.end]
        self.begin, self.end = 0, left
        self.deadline = time.monotonic() + self.frame_s if left else math.inf
        return unpack(self._receive, body_bytes)

    def _receive(self, size: int) -> memoryview:
        if self.begin + size > len(self.buffer):
            larger, left = memoryview(bytearray(self.begin + size)), self.end - self.begin
            larger[:left] = self.buffer[self.begin : self.end]
            self.buffer, self.begin, self.end = larger, 0, left
        while self.end - self.begin < size:
            count = self.connection.recv_into(self.buffer[self.end :])
            if not count:
                break
            self.end += count
            now = time.monotonic()
            if now > self.deadline:
                raise TimeoutError(f"a frame that took more than {self.frame_s:g} s")
            self.deadline = min(self.deadline, now + self.frame_s)
        part = self.buffer[self.begin : min(self.begin + size, self.end)]
        self.begin += len(part)
        return part


def _exactly(receive: Callable[[int], bytes | memoryview], size: int) -> bytes | memoryview:
    part = receive(size) if size else b""
    if len(part) != size:
        raise Malformed(f"ends after {len(part)} of {size} bytes")
    return part


def _head(text: bytes) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    try:
        head = DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed("a head that is not JSON") from error
    if not isinstance(head, dict) or set(head) != {"say", "arrays"}:
        raise Malformed("a head without say and arrays")
    say, arrays = head["say"], head["arrays"]
    if not isinstance(say, dict) or not isinstance(arrays, list) or len(arrays) > ARRAYS:
        raise Malformed(f"say is no object, or arrays no list of at most {ARRAYS}")
    described = [_array(entry) for entry in arrays]
    if len({name for name, _, _ in described}) != len(described):
        raise Malformed("two arrays of one name")
    return say, described


def _array(entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise Malformed("an array is [name, type, shape]")
    name, dtype, shape = entry
    text = isinstance(name, str) and isinstance(dtype, str)
    if not text or dtype not in DTYPES or not isinstance(shape, list):
        raise Malformed(f"an array of type {dtype!r:.40}, expected one of {', '.join(DTYPES)}")
    if len(shape) > AXES or not all(type(n) is int and 0 <= n <= BODY_BYTES for n in shape):
        raise Malformed(f"an array of shape {shape!r:.80}")
    return name, DTYPES[dtype], tuple(shape)
