"""Frames: what was packed comes out, and nothing else comes in."""

import io
import json
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.server import wire
from deploy.server.wire import Closed, FrameReader, Malformed
from tests.served import pack


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
    stream = io.BytesIO(pack({"x": [1, "é"]}, arrays) + pack({"y": None}))
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
    frame = pack({}, {"a": np.zeros(1)})
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
    with pytest.raises(ValueError, match="a: got .*, expected one of"):
        pack({}, {"a": value})


def test_what_is_too_long_is_not_packed():
    with pytest.raises(ValueError, match="send fewer rows"):
        pack({}, {"a": np.zeros(wire.BODY_BYTES + 1, np.uint8)})
    with pytest.raises(ValueError, match="JSON"):
        pack({"a": float("nan")})


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(5)
        other.settimeout(5)
        yield one, other


def test_frames_of_any_length_come_one_by_one_however_they_are_cut(ends):
    sent = [
        {"a": np.full(n, i, np.uint8), "b": np.arange(n, dtype=np.float32)}
        for i, n in enumerate((3, 700_000, 0, 5, 70_000, 1))
    ]
    data = b"".join(pack({"i": i}, arrays) for i, arrays in enumerate(sent))
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, len(data), 50))

    def send():
        for part in np.split(np.frombuffer(data, np.uint8), cuts):
            ends[0].sendall(part.tobytes())
        ends[0].shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    inbox = FrameReader(ends[1])
    for i, arrays in enumerate(sent):
        say, found = inbox.read()
        assert say == {"i": i}
        for name, value in arrays.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].flags.aligned
    with pytest.raises(Closed):
        inbox.read()
    thread.join(5)


def test_what_a_socket_does_not_take_at_once_is_sent_nevertheless(ends):
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    arrays = {"a": np.arange(9, dtype=np.int64), "b": np.arange(1 << 20, dtype=np.float64)}
    thread = threading.Thread(target=lambda: wire.send(ends[0], wire.parts({"x": 1}, arrays)))
    thread.start()
    say, found = FrameReader(ends[1]).read()
    thread.join(5)
    assert say == {"x": 1}
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_frame_that_takes_too_long_is_not_waited_for(ends):
    def trickle():
        for byte in pack({}):
            ends[0].sendall(bytes([byte]))
            time.sleep(0.02)

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(TimeoutError, match="took more than 0.2 s"):
        FrameReader(ends[1], frame_s=0.2).read()
    thread.join(10)


def test_the_body_of_a_frame_begins_where_its_longest_numbers_want_it():
    for word in ("", "a", "ab", "é", "abcdefg"):
        first, *_ = wire.parts({"x": word}, {"a": np.zeros(1)})
        assert len(first) % wire.ALIGNED == 0
