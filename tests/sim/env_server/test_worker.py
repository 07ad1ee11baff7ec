"""The worker's file is for any Python from 3.8 on, and answers whatever is sent to it."""

import ast
import socket
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies

from benchmarks.sim.env_server_study import POINT
from sim import adapters
from sim.env_server import worker

OPTIONS = {"rows": [0, 2], "num_envs": 2}
ADAPTERS = sorted(Path(adapters.__path__[0]).glob("*.py"))
OLD = [Path(worker.__file__), *ADAPTERS]
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_what_runs_in_other_interpreters_is_python_of_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_worker_imports_the_standard_library_and_numpy_alone():
    tree = ast.parse(Path(worker.__file__).read_text())
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in found}
    assert roots - set(sys.stdlib_module_names) == {"numpy"}


@pytest.fixture
def served():
    """Our end of a socket at whose other end a server answers."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10.0)

    def serve():
        with theirs:
            try:
                worker.Server(theirs, worker.Inbox(theirs)).serve()
            except (EOFError, OSError, worker.ProtocolError):
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield ours
    ours.close()
    thread.join(10.0)
    assert not thread.is_alive()


def answer(sock):
    inbox = worker.Inbox(sock)
    while (body := inbox.take()) is None:
        inbox.fill()
    return worker.decode(body)


def ask(sock, **message):
    sock.sendall(worker.encode(message))
    return answer(sock)


def opened(sock, number=1):
    return ask(sock, id=number, kind="open", adapter=str(POINT), options=OPTIONS)


def test_an_adapter_is_opened_once_and_says_what_it_is(served):
    reply = opened(served)
    assert reply["id"] == 1
    assert reply["result"]["announced"]["channels"] == ["x", "y"]
    assert reply["result"]["fields"]["actions"] == [[2, 256, 2], "float32"]
    assert "expected 'open' first" in opened(served, 2)["error"]["sentence"]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"id": 1, "kind": "call"}, "kind: got 'call', expected 'open' first"),
        ({"id": 1, "kind": "dance"}, "kind: got 'dance'"),
        ({"id": 1}, "kind: got None"),
        ({"kind": "close"}, "id: got None, expected more than 0"),
        ({"id": 0, "kind": "close"}, "id: got 0, expected more than 0"),
        ({"id": "1", "kind": "close"}, "id: got '1'"),
        (
            {"id": 1, "kind": "open", "adapter": "/nowhere.py"},
            "adapter: got /nowhere.py, expected a",
        ),
    ],
)
def test_a_message_that_makes_no_sense_gets_an_error_and_the_next_is_answered(
    served, message, sentence
):
    assert sentence in ask(served, **message)["error"]["sentence"]
    assert "result" in opened(served, 5)


def test_an_id_that_was_used_is_refused(served):
    opened(served, 4)
    assert "expected more than 4" in ask(served, id=4, kind="close")["error"]["sentence"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"id": 1}x'])
def test_a_body_that_is_no_object_gets_an_error_and_the_next_is_answered(served, body):
    served.sendall(len(body).to_bytes(4, "big") + body)
    reply = answer(served)
    assert reply["id"] is None
    assert reply["error"]["sentence"].startswith("message: got")
    assert "result" in opened(served)


def test_a_message_that_is_too_long_ends_the_server_unread(served):
    served.sendall((worker.MOST_BYTES + 1).to_bytes(4, "big"))
    assert served.recv(1) == b""


def test_a_message_that_breaks_off_ends_the_server(served):
    served.sendall((100).to_bytes(4, "big") + b'{"id"')
    served.shutdown(socket.SHUT_WR)
    assert served.recv(1) == b""


@pytest.mark.parametrize("size", [0, 100])
def test_memory_that_does_not_come_or_is_too_small_is_refused(served, size):
    opened(served)
    message = worker.encode({"id": 2, "kind": "bind"})
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        if size:
            worker.send_files(served, message, [file.fileno()])
        else:
            served.sendall(message)
        assert f"bind: got {int(size > 0)} files" in answer(served)["error"]["sentence"]


@given(message=strategies.dictionaries(strategies.text(), JSON), kind=JSON, arguments=JSON)
def test_whatever_object_comes_gets_one_answer_under_its_id(message, kind, arguments):
    ours, theirs = socket.socketpair()
    server = worker.Server(theirs, worker.Inbox(theirs))
    thread = threading.Thread(target=server.serve)
    thread.start()
    with ours, theirs:
        ours.settimeout(10.0)
        assert opened(ours)["result"]
        if kind in ("bind", "close"):
            kind = "call"
        sent = {**message, "id": 2, "kind": kind, "command": kind, "arguments": arguments}
        reply = ask(ours, **sent)
        assert reply["id"] == 2
        assert set(reply) == {"id", "error"}
        assert "result" in ask(ours, id=3, kind="close")
    thread.join(10.0)


@given(message=strategies.dictionaries(strategies.text(), JSON))
def test_a_message_is_read_as_it_was_written(message):
    written = worker.encode(message)
    assert int.from_bytes(written[:4], "big") == len(written) - 4
    assert worker.decode(written[4:]) == message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes"])
def test_what_is_no_json_is_not_sent(value):
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        worker.encode({"value": value})


def test_a_message_of_more_than_a_mebibyte_is_not_sent():
    worker.encode({"v": "x" * (worker.MOST_BYTES - len('{"v":""}'))})
    with pytest.raises(ValueError, match="got 1048577 bytes, expected at most 1048576"):
        worker.encode({"v": "x" * (worker.MOST_BYTES - len('{"v":""}') + 1)})


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {"a": None},
        {"a": [[3], "float33"]},
        {"a": [[-1], "float32"]},
        {"a": [["x"], "float32"]},
        {"a": [[3], "object"]},
        {"a": [[2**40], "float64"]},
        {"a": [[2**33, 2**33], "uint8"]},
    ],
)
def test_arrays_that_are_none_are_refused(fields):
    with pytest.raises(ValueError, match="fields: "):
        worker.check_fields(fields)


def test_arrays_lie_one_after_the_other_at_multiples_of_64():
    fields = worker.check_fields(
        {"a": [[3], "uint8"], "none": [[0, 4], "float64"], "b": [[5, 2], "float32"]}
    )
    # 3 bytes take 64, none take none, 40 take 64.
    assert worker.total_bytes(fields) == 128
    memory = bytearray(128)
    arrays = worker.map_arrays(memory, fields)
    arrays["a"][:], arrays["b"][:] = 7, 1.0
    assert memory[:3] == b"\x07\x07\x07"
    assert np.frombuffer(memory, np.float32, 10, 64).sum() == 10.0
    assert arrays["none"].shape == (0, 4)


def test_a_host_finds_what_lies_beside_it_under_an_underscore_and_leaves_it_to_others(tmp_path):
    (tmp_path / "_near.py").write_text("WORD = 'near'\n")
    (tmp_path / "plain.py").write_text("WORD = 'plain'\n")
    adapter = tmp_path / "adapter.py"
    adapter.write_text("import _near\ndef open_adapter(options): return _near.WORD\n")
    assert worker.load_adapter(adapter, {}) == "near"
    assert "_near" not in sys.modules
    adapter.write_text("import plain\ndef open_adapter(options): return plain.WORD\n")
    with pytest.raises(ModuleNotFoundError, match="plain"):
        worker.load_adapter(adapter, {})


def test_a_file_without_open_adapter_is_no_host(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text("")
    with pytest.raises(ValueError, match=r"has no open_adapter\(options\)"):
        worker.load_adapter(adapter, {})
