"""Frames between a policy server and its clients: a JSON head and raw arrays, checked before use.

Nothing is unpickled. A frame says how long it is before any of it is read, and what is too long, of
another type or shape than it says, or not JSON is refused. Needs nothing but numpy.

    magic, head length u32, body length u32 | head: {"say": {...}, "arrays": [...]} | arrays
"""

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

PROTOCOL = 1
"""Version of what is said in frames."""
MAGIC = b"MNV1"
PREFIX = struct.Struct(">4sII")
HEAD_BYTES = 1 << 16
"""Longest head."""
BODY_BYTES = 1 << 25
"""Longest body: 32 MiB, a hundred arms with two cameras of 240 pixels."""
ARRAYS, AXES = 16, 6
"""Most arrays of a frame, and axes of an array."""
DTYPES = ("uint8", "bool", "int64", "float32", "float64")
"""What an array may be made of."""

Frame = tuple[dict[str, Any], dict[str, np.ndarray]]
"""What is said, and arrays by name."""


class Closed(Exception):
    """The other side has closed the connection between two frames."""


class Malformed(ValueError):
    """What came is no frame: nothing after it can be trusted to be one."""


def pack(say: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Return a frame.

    Raises:
        ValueError: it is too long, or an array is of a type that does not travel.
    """
    given = {name: np.ascontiguousarray(value) for name, value in (arrays or {}).items()}
    wrong = [name for name, value in given.items() if value.dtype.name not in DTYPES]
    if wrong:
        raise ValueError(f"{wrong[0]}: {given[wrong[0]].dtype} does not travel; use {DTYPES}")
    told = [[name, value.dtype.name, list(value.shape)] for name, value in given.items()]
    head = json.dumps({"say": dict(say), "arrays": told}, allow_nan=False).encode()
    size = sum(value.nbytes for value in given.values())
    if len(head) > HEAD_BYTES or size > BODY_BYTES:
        raise ValueError(
            f"a frame of {len(head)} and {size} bytes, at most {HEAD_BYTES} and {BODY_BYTES}; send "
            "fewer rows, or smaller pictures"
        )
    return b"".join(
        [PREFIX.pack(MAGIC, len(head), size), head, *(v.tobytes() for v in given.values())]
    )


def unpack(receive: Callable[[int], bytes | bytearray], body_bytes: int = BODY_BYTES) -> Frame:
    """Return the next frame.

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
    say, told = _head(_whole(receive, head_size))
    sizes = [int(np.dtype(dtype).itemsize) * math.prod(shape) for _, dtype, shape in told]
    if sum(sizes) != body_size:
        raise Malformed(f"arrays of {sum(sizes)} bytes in a body of {body_size}")
    body, arrays, begin = memoryview(_whole(receive, body_size)), {}, 0
    for (name, dtype, shape), size in zip(told, sizes, strict=True):
        part = np.frombuffer(body[begin : begin + size], np.uint8)
        if dtype == "bool" and (part > 1).any():
            raise Malformed(f"array {name!r}: bytes that are neither true nor false")
        # A copy where it does not begin at a multiple of its numbers' size: engines want it so.
        arrays[name] = (part.copy() if begin % 8 else part).view(dtype).reshape(shape)
        begin += size
    return say, arrays


def exactly(connection: socket.socket, size: int) -> bytearray:
    """Return `size` bytes of a connection, or fewer at its end."""
    found = bytearray(size)
    view, count = memoryview(found), 0
    while count < size:
        part = connection.recv_into(view[count:], size - count)
        if not part:
            return found[:count]
        count += part
    return found


def _whole(receive: Callable[[int], bytes | bytearray], size: int) -> bytearray:
    found = receive(size) if size else bytearray()
    found = found if isinstance(found, bytearray) else bytearray(found)  # arrays may be written to
    if len(found) != size:
        raise Malformed(f"ends after {len(found)} of {size} bytes")
    return found


def _head(text: bytearray) -> tuple[dict[str, Any], list[tuple[str, str, tuple[int, ...]]]]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
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


def _array(one: Any) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(one, list) or len(one) != 3:
        raise Malformed("an array is [name, type, shape]")
    name, dtype, shape = one
    if not isinstance(name, str) or dtype not in DTYPES or not isinstance(shape, list):
        raise Malformed(f"an array of type {dtype!r:.40}, expected one of {DTYPES}")
    if len(shape) > AXES or not all(type(n) is int and 0 <= n <= BODY_BYTES for n in shape):
        raise Malformed(f"an array of shape {shape!r:.80}")
    return name, dtype, tuple(shape)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
