"""Frames: what was packed comes out, and nothing else comes in."""

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import wire
from deploy.wire import Closed, Malformed


def unpacked(data, **more):
    return wire.unpack(io.BytesIO(data).read, **more)


def raw(say=None, arrays=(), body=b"", magic=wire.MAGIC, head=None):
    head = head or json.dumps({"say": say or {}, "arrays": list(arrays)}).encode()
    return wire.PREFIX.pack(magic, len(head), len(body)) + head + body


def test_what_is_packed_comes_out():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]),
        "c": np.zeros((0, 4)), "d": np.int64(7).reshape(()),
        "e": np.arange(8, dtype=np.uint8)[::2],
    }  # fmt: skip
    stream = io.BytesIO(wire.pack({"x": [1, "é"]}, arrays) + wire.pack({"y": None}))
    say, found = wire.unpack(stream.read)
    assert say == {"x": [1, "é"]}
    assert list(found) == list(arrays)
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    assert wire.unpack(stream.read) == ({"y": None}, {})
    with pytest.raises(Closed):
        wire.unpack(stream.read)


WRONG = {
    "expected b'MNV1'": raw(magic=b"HTTP"),
    "a prefix of 3 bytes": b"MNV",
    "ends after": raw()[:-1],
    "bytes, at most": wire.PREFIX.pack(wire.MAGIC, 1 << 30, 0),
    "at most 65536": wire.PREFIX.pack(wire.MAGIC, 10, 1 << 31),
    "not JSON": raw(head=b"{"),
    "head that is not JSON": raw(head=b'{"say": {"a": NaN}, "arrays": []}'),
    "a head that is": raw(head=b"[" * 60_000),
    "without say and arrays": raw(head=b"[]"),
    "a head without": raw(head=b'{"say": {}}'),
    "say is no object": raw(head=b'{"say": 1, "arrays": []}'),
    "at most 16": raw(arrays=[["a", "bool", [0]]] * 17),
    "two arrays of one name": raw(arrays=[["a", "bool", [0]]] * 2),
    "an array is": raw(arrays=[["a", "bool"]]),
    "of type 'object'": raw(arrays=[["a", "object", [1]]]),
    "of type 'float16'": raw(arrays=[["a", "float16", [1]]]),
    "of shape": raw(arrays=[["a", "uint8", [-1]]]),
    "an array of shape [True": raw(arrays=[["a", "uint8", [True]]], body=b"1"),
    "an array of shape [1.0": raw(arrays=[["a", "uint8", [1.0]]], body=b"1"),
    "of shape [1, 1, 1": raw(arrays=[["a", "uint8", [1] * 7]], body=b"1"),
    "arrays of 8 bytes in a body of 4": raw(arrays=[["a", "float32", [2]]], body=b"1234"),
    "in a body of 0": raw(arrays=[["a", "uint8", [1 << 20] * 6]]),
    "neither true nor false": raw(arrays=[["a", "bool", [1]]], body=b"\x02"),
}


@pytest.mark.parametrize("said", list(WRONG))
def test_what_is_no_frame_is_refused(said):
    with pytest.raises(Malformed) as caught:
        unpacked(WRONG[said])
    assert said in str(caught.value)


def test_a_stranger_is_not_listened_to_for_long():
    frame = wire.pack({}, {"a": np.zeros(1)})
    assert unpacked(frame, body_bytes=8)[1]["a"] == 0
    with pytest.raises(Malformed, match="at most 65536 and 7"):
        unpacked(frame, body_bytes=7)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_frame(data):
    with pytest.raises((Malformed, Closed)):
        unpacked(data)


@given(st.binary(max_size=200))
def test_random_bytes_after_a_good_prefix_are_no_frame(data):
    with pytest.raises(Malformed):
        unpacked(wire.PREFIX.pack(wire.MAGIC, len(data), 0) + data)


@pytest.mark.parametrize("value", [np.zeros(1, np.float16), np.array(["a"]), np.array([None])])
def test_what_does_not_travel_is_not_packed(value):
    with pytest.raises(ValueError, match="a: .* does not travel"):
        wire.pack({}, {"a": value})


def test_what_is_too_long_is_not_packed():
    with pytest.raises(ValueError, match="send fewer rows"):
        wire.pack({}, {"a": np.zeros(wire.BODY_BYTES + 1, np.uint8)})
    with pytest.raises(ValueError, match="JSON"):
        wire.pack({"a": float("nan")})
