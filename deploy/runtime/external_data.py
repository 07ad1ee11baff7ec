"""Whether an ONNX graph keeps weights in other files, read from its bytes without the onnx library.

A file's hash covers no other file. Fields are those of onnx.proto3; Protocol Buffers' wire format:
https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""By message, the fields in which a tensor can lie, and the messages that they are."""
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""Fields of a tensor; it has neither, or a location of 0, if its numbers are in the same file."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


def has_external_data(model: bytes) -> bool:
    """Whether a tensor of a graph, or of a graph inside it, lies in another file.

    Raises:
        ValueError: the bytes are no ONNX graph.
    """
    try:
        return _is_external(memoryview(model), "model")
    except (IndexError, RecursionError) as error:
        raise ValueError("no ONNX graph") from error


def _is_external(message: memoryview, kind: str) -> bool:
    for field, value in _fields(message):
        if kind == "tensor" and field in (EXTERNAL_DATA, DATA_LOCATION) and value != 0:
            return True
        inner = FIELDS[kind].get(field)
        if inner and isinstance(value, memoryview) and _is_external(value, inner):
            return True
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field; fixed numbers, which say nothing here, as 0."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        value: int | memoryview = 0
        if wire == VARINT:
            value, at = _varint(message, at)
        elif wire == BYTES:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise IndexError
        yield field, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number of variable length and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
