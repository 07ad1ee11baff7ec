"""Frames between a policy server and its clients: a JSON head and raw arrays, checked before use.

Nothing is unpickled. A frame says how long it is before any of it is read, and what is too long, of
another type or shape than it says, or not JSON is refused. Needs nothing but numpy.

    magic, head length u32, body length u32 | head: {"say": {...}, "arrays": [...]} | arrays

Spaces after the head let the body begin at a multiple of 8 bytes. Arrays are copied only where they
have to be: they are sent from where they lie, and read in the buffer that they arrived in.
"""

import json
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PROTOCOL = 2
"""Version of what is said in frames."""
MAGIC = b"MNV1"
PREFIX = struct.Struct(">4sII")
HEAD_BYTES = 1 << 16
"""Longest head."""
BODY_BYTES = 1 << 25
"""Longest body: 32 MiB, a hundred arms with two cameras of 240 pixels."""
ARRAYS, AXES = 16, 6
"""Most arrays of a frame, and axes of an array."""
DTYPES = {name: np.dtype(name) for name in ("uint8", "bool", "int64", "float32", "float64")}
"""What an array may be made of."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""What they are called; numpy takes longer to say it than it takes to send a small array."""
ALIGNED = 8
"""Bytes of the longest number of an array."""
FIRST_BYTES = 1 << 16
"""What a connection's buffer holds before a longer frame comes."""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


ENCODER = json.JSONEncoder(allow_nan=False)
DECODER = json.JSONDecoder(parse_constant=_no_constant)

Frame = tuple[dict[str, Any], dict[str, np.ndarray]]
"""What is said, and arrays by name."""
Part = bytes | memoryview
"""Some of the bytes of a frame."""


class Closed(Exception):
    """The other side has closed the connection between two frames."""


class Malformed(ValueError):
    """What came is no frame: nothing after it can be trusted to be one."""


def parts(say: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> list[Part]:
    """Return a frame in parts; what was an array is still where it was.

    Raises:
        ValueError: it is too long, or an array is of a type that does not travel.
    """
    given = {name: np.asarray(value, order="C") for name, value in (arrays or {}).items()}
    wrong = [name for name, value in given.items() if value.dtype not in NAMES]
    if wrong:
        raise ValueError(
            f"{wrong[0]}: {given[wrong[0]].dtype} does not travel; use {', '.join(DTYPES)}"
        )
    told = [(name, NAMES[value.dtype], value.shape) for name, value in given.items()]
    head = ENCODER.encode({"say": dict(say), "arrays": told}).encode()
    head += b" " * (-(PREFIX.size + len(head)) % ALIGNED)
    size = sum(value.nbytes for value in given.values())
    if len(head) > HEAD_BYTES or size > BODY_BYTES:
        raise ValueError(
            f"a frame of {len(head)} and {size} bytes, at most {HEAD_BYTES} and {BODY_BYTES}; send "
            "fewer rows, or smaller pictures"
        )
    body = (value.reshape(-1).view(np.uint8).data for value in given.values())
    return [PREFIX.pack(MAGIC, len(head), size) + head, *body]


def pack(say: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Return a frame in one piece; see `parts`."""
    return b"".join(parts(say, arrays))


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
    """Return the next frame; its arrays lie in what was received.

    Args:
        receive: Returns as many bytes as it is asked for, or fewer at the end of the stream.
        body_bytes: Longest body that is read.

    Raises:
        Closed: there is none.
        Malformed: what came is no frame.
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
    say, told = _head(bytes(_whole(receive, head_size)))
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in told]
    if sum(sizes) != body_size:
        raise Malformed(f"arrays of {sum(sizes)} bytes in a body of {body_size}")
    body, arrays, begin = np.frombuffer(_whole(receive, body_size), np.uint8), {}, 0
    for (name, dtype, shape), size in zip(told, sizes, strict=True):
        part = body[begin : begin + size]
        if dtype == np.bool_ and (part > 1).any():
            raise Malformed(f"array {name!r}: bytes that are neither true nor false")
        found = part.view(dtype)
        # A copy where it does not begin at a multiple of its numbers' size: engines want it so.
        arrays[name] = (found if found.flags.aligned else found.copy()).reshape(shape)
        begin += size
    return say, arrays


class Inbox:
    """Frames of one connection, read into one buffer that is used again and grows to the longest.

    Args:
        connection: Where they come from; its own timeout is how long it may be silent.
        frame_s: How long a frame may take from its first byte to its last.
    """

    def __init__(self, connection: socket.socket, frame_s: float = math.inf) -> None:
        self.connection, self.frame_s = connection, frame_s
        self.buffer = memoryview(bytearray(FIRST_BYTES))
        self.begin = self.end = 0
        self.late = math.inf

    def frame(self, body_bytes: int = BODY_BYTES) -> Frame:
        """Return the next frame; its arrays are good until this is called again.

        Raises:
            Closed: there is none.
            Malformed: what came is no frame.
            OSError: the connection is gone, was silent for too long, or took too long for a frame.
        """
        left = self.end - self.begin  # of a frame that was sent before this one was answered
        self.buffer[:left] = self.buffer[self.begin : self.end]
        self.begin, self.end = 0, left
        self.late = time.monotonic() + self.frame_s if left else math.inf
        return unpack(self._receive, body_bytes)

    def _receive(self, size: int) -> memoryview:
        if self.begin + size > len(self.buffer):
            fresh, left = memoryview(bytearray(self.begin + size)), self.end - self.begin
            fresh[:left] = self.buffer[self.begin : self.end]
            self.buffer, self.begin, self.end = fresh, 0, left
        while self.end - self.begin < size:
            count = self.connection.recv_into(self.buffer[self.end :])
            if not count:
                break
            self.end += count
            now = time.monotonic()
            if now > self.late:
                raise TimeoutError(f"a frame that took more than {self.frame_s:g} s")
            self.late = min(self.late, now + self.frame_s)
        found = self.buffer[self.begin : min(self.begin + size, self.end)]
        self.begin += len(found)
        return found


def _whole(receive: Callable[[int], bytes | memoryview], size: int) -> bytes | memoryview:
    found = receive(size) if size else b""
    if len(found) != size:
        raise Malformed(f"ends after {len(found)} of {size} bytes")
    return found


def _head(text: bytes) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    try:
        found = DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed("a head that is not JSON") from error
    if not isinstance(found, dict) or set(found) != {"say", "arrays"}:
        raise Malformed("a head without say and arrays")
    say, arrays = found["say"], found["arrays"]
    if not isinstance(say, dict) or not isinstance(arrays, list) or len(arrays) > ARRAYS:
        raise Malformed(f"say is no object, or arrays no list of at most {ARRAYS}")
    told = [_array(one) for one in arrays]
    if len({name for name, _, _ in told}) != len(told):
        raise Malformed("two arrays of one name")
    return say, told


def _array(one: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if not isinstance(one, list) or len(one) != 3:
        raise Malformed("an array is [name, type, shape]")
    name, dtype, shape = one
    words = isinstance(name, str) and isinstance(dtype, str)
    if not words or dtype not in DTYPES or not isinstance(shape, list):
        raise Malformed(f"an array of type {dtype!r:.40}, expected one of {', '.join(DTYPES)}")
    if len(shape) > AXES or not all(type(n) is int and 0 <= n <= BODY_BYTES for n in shape):
        raise Malformed(f"an array of shape {shape!r:.80}")
    return name, DTYPES[dtype], tuple(shape)
