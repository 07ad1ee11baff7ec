"""A worker in another process: called, lost, hung, interrupted; nothing of it is left."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sim.env_server_study import MARK, POINT, ROOT, SHARED, left_over, marked
from sim.env_server import child, worker
from sim.env_server.client import AdapterError, Process, WorkerDied, WorkerHung

OPTIONS = {"rows": [0, 1], "num_envs": 1}
PYTHON = Path(sys.executable)
MINE = f"client {os.getpid()}."
"""Marks workers of this process: tests may run beside one another."""


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Every test ends with as many files, processes and memory as it began with."""
    gc.collect()
    before = left_over(MINE)
    yield
    gc.collect()
    left = left_over(MINE) - before
    assert not [thing for thing in left if not thing.startswith(SHARED)]


def start(fault="", at=3, **limits):
    options = {**OPTIONS, "fault": fault, "at": at}
    return Process(PYTHON, POINT, options, environ={MARK: MINE}, **limits)


def adapter(tmp_path, body):
    """Start an adapter whose `call` has a body of its own."""
    file = tmp_path / "adapter.py"
    file.write_text(
        "import os, sys, time\nclass Adapter:\n"
        "    def fields(self): return {'a': ((3,), 'float32'), 'b': ((2, 2), 'uint8')}\n"
        "    def announce(self): return {'pid': os.getpid()}\n"
        "    def bind(self, arrays): self.arrays = arrays\n"
        f"    def call(self, command, given): {body}\n"
        "    def close(self): print('closed', file=open(__file__ + '.txt', 'w'))\n"
        "def open_adapter(options): return Adapter()\n"
    )
    return Process(PYTHON, file, {}, environ={MARK: MINE})


def step(process, times=1):
    process.call("reset", {"seed": 0})
    for _ in range(times):
        process.call("step", {"length": 1})


def test_arrays_are_shared_and_lie_at_multiples_of_64_bytes():
    process = start()
    process.call("reset", {"seed": 0})
    before = process.arrays["proprio"].copy()
    process.arrays["actions"][:, 0] = 0.5
    process.call("step", {"length": 1})
    # A tenth of the way: a fifth of the action.
    np.testing.assert_allclose(process.arrays["proprio"], before + 0.1, atol=1e-6)
    assert all(a.ctypes.data % 64 == 0 for a in process.arrays.values())
    process.close()
    assert process.arrays == {}


def test_the_memory_has_no_name():
    names = set(os.listdir("/dev/shm"))
    process = start()
    held = [
        os.readlink(f"/proc/{process.pid}/fd/{n}") for n in os.listdir(f"/proc/{process.pid}/fd")
    ]
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "mneme-env-server (deleted)" in maps
    others = {name for name in os.listdir("/dev/shm") if "fastdds" in name}  # ROS nodes of others
    assert set(os.listdir("/dev/shm")) - others <= names
    assert not [name for name in held if "/dev/shm" in name]
    process.close()


def test_the_child_has_few_of_our_variables_and_none_of_our_pythons(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("SECRET_TOKEN", "ours")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{sys.prefix}/lib:/opt/driver")
    given = child.child_environment({"SUITE": "x"})
    assert "PYTHONPATH" not in given
    assert "SECRET_TOKEN" not in given
    assert given["MUJOCO_GL"] == "osmesa"
    assert given["SUITE"] == "x"
    assert given["HF_HUB_OFFLINE"] == "1"
    assert given["LD_LIBRARY_PATH"] == "/opt/driver"
    process = adapter(tmp_path, "return sys.path")
    assert str(ROOT) not in process.call("path")
    assert str(Path(worker.__file__).parent) not in process.call("path")
    process.close()


def test_an_error_of_the_host_is_a_sentence_with_its_traceback_and_the_worker_lives_on():
    process = start("raise")
    with pytest.raises(AdapterError, match="solver did not converge") as caught:
        step(process, 5)
    assert caught.value.kind == "RuntimeError"
    assert caught.value.sentence == "the solver did not converge"
    assert "_fault_env.py" in caught.value.traceback
    first = str(caught.value).splitlines()[0]
    assert first.startswith("simulator '_fault_env' (")
    step(process)
    process.close()


def test_sys_exit_in_a_simulator_is_an_error_like_others():
    process = start("exit")
    with pytest.raises(AdapterError, match="SystemExit: 3"):
        step(process, 5)
    step(process)
    process.close()


def test_a_host_that_refuses_to_open_says_why():
    with pytest.raises(AdapterError, match="solver did not converge"):
        start("raise", "open")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "quit",
            r"ended with exit code 7; its last output follows, reset starts it again:\nlicence",
        ),
        ("crash", r"ended with signal 11 \(SIGSEGV\)(.|\n)*Segmentation fault"),
        ("helper", "ended with exit code 7"),
    ],
)
def test_a_worker_that_dies_says_how_and_its_last_words(fault, words):
    process = start(fault)
    with pytest.raises(WorkerDied, match=words):
        step(process, 5)
    assert process.closed
    with pytest.raises(WorkerDied, match="it is closed; start a new one"):
        process.call("reset", {"seed": 0})


def test_a_worker_that_dies_while_it_opens_is_one_error():
    with pytest.raises(WorkerDied, match="opening: its process ended with exit code 7"):
        start("quit", "open")


def test_a_worker_that_was_killed_between_calls_is_found_at_the_next():
    process = start()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"signal 9 \(SIGKILL\)"):
        step(process)


def test_a_call_that_takes_too_long_ends_the_worker():
    process = start("hang", step_timeout_s=0.5)
    with pytest.raises(WorkerHung, match="step: it took longer than 0.5 s, so its process was"):
        step(process, 5)
    assert process.closed


def test_opening_that_takes_too_long_ends_the_worker():
    with pytest.raises(WorkerHung, match=r"opening: it took longer than 1 s"):
        start("hang", "open", startup_timeout_s=1.0)


def test_a_simulator_that_lets_no_thread_run_is_found_by_its_heartbeat():
    process = start("hold", heartbeat_timeout_s=0.8)
    with pytest.raises(WorkerHung, match="sent no heartbeat for 0.8 s"):
        step(process, 5)


def test_a_stopped_worker_is_found_by_its_heartbeat():
    process = start(heartbeat_timeout_s=0.8)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(WorkerHung, match="sent no heartbeat"):
        step(process)


def test_what_a_simulator_prints_neither_blocks_it_nor_breaks_the_protocol():
    process = start("chatter")
    step(process, 5)
    process.close()


def test_a_host_is_closed_before_its_process_ends(tmp_path):
    process = adapter(tmp_path, "return 1")
    process.close()
    process.close()
    assert (tmp_path / "adapter.py.txt").read_text() == "closed\n"


def test_a_worker_ends_with_the_last_reference_to_it():
    process = start()
    pid = process.pid
    assert marked(MINE) == [pid]
    del process
    gc.collect()
    assert marked(MINE) == []


def test_two_workers_are_at_work_at_once(tmp_path):
    processes = [adapter(tmp_path, "return time.sleep(0.6) or time.time()") for _ in range(2)]
    begin = time.time()
    for process in processes:
        process.send("sleep")
    ends = [process.receive() for process in processes]
    # One after the other they would end 0.6 s apart.
    assert abs(ends[1] - ends[0]) < 0.5
    assert min(ends) >= begin + 0.6
    for process in processes:
        process.close()


def test_an_answer_that_is_no_json_or_too_long_is_an_error_and_the_worker_lives_on(tmp_path):
    process = adapter(tmp_path, "return {'nan': float('nan'), 'long': 'x' * 2000000}.get(command)")
    with pytest.raises(AdapterError, match="cannot be written as JSON"):
        process.call("nan")
    with pytest.raises(AdapterError, match="expected at most 1048576"):
        process.call("long")
    assert process.call("nothing") is None
    process.close()


def test_an_argument_that_is_too_long_is_not_sent_and_the_worker_lives_on(tmp_path):
    process = adapter(tmp_path, "return len(given)")
    with pytest.raises(ValueError, match="put large values into arrays"):
        process.call("x", {"long": "x" * 2_000_000})
    assert process.call("x", {"a": 1}) == 1
    process.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"id": 7}', "got an answer to 7, expected one to 1"),
        (b"[]", "broke the protocol: message: got"),
        (b"\xff", "broke the protocol: message: got"),
        (b'{"id": 1, "result": 3}', "description is invalid"),
        (
            b'{"id": 1, "result": {"announced": 1, "fields": {"a": 5}}}',
            "description is invalid: fields",
        ),
        (None, "broke the protocol: a message of 4294967295 bytes"),
    ],
)
def test_a_worker_that_lies_is_ended(tmp_path, monkeypatch, answer, words):
    frame = b"\xff" * 4 if answer is None else len(answer).to_bytes(4, "big") + answer
    liar = tmp_path / "worker.py"
    liar.write_text(
        "import socket, sys, time\nsock = socket.socket(fileno=int(sys.argv[1]))\n"
        f"sock.recv(9999)\nsock.sendall({frame!r})\ntime.sleep(100)\n"
    )
    monkeypatch.setattr(child, "WORKER", liar)
    with pytest.raises(WorkerDied, match=words):
        start()


@pytest.mark.parametrize(("python", "file"), [("/nowhere/python", POINT), (PYTHON, "/nowhere.py")])
def test_what_is_not_there_is_refused_in_a_sentence(python, file):
    with pytest.raises(ValueError, match=r"(python|adapter): got /nowhere\S+, expected a file"):
        Process(Path(python), Path(file), {})


def test_what_cannot_be_started_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="python: cannot start .*Permission denied"):
        Process(POINT, POINT, {})


def test_a_python_without_numpy_says_so_in_its_last_words(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(WorkerDied, match=r"exit code 1(.|\n)*No module named 'numpy'"):
        Process(bare, POINT, {})


def test_memory_that_there_is_not_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="arrays: got 8388608 MiB of shared memory, expected less"):
        child.anonymous_memory(2**43)


INTERRUPTED = """
import sys
from pathlib import Path
from sim.env_server.client import Process
process = Process(
    Path(sys.executable), Path({adapter!r}), {options}, environ={{{mark!r}: {mine!r}}}
)
process.call("reset", {{"seed": 0}})
process.send("step", {{"length": 1}})
print("hanging", flush=True)
process.receive()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent_even_while_it_hangs(number):
    options = {**OPTIONS, "fault": "hold", "at": 1}
    code = INTERRUPTED.format(adapter=str(POINT), options=options, mark=MARK, mine=MINE)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:  # fmt: skip
        assert parent.stdout.readline() == b"hanging\n"
        assert len(marked(MINE)) == 1
        parent.send_signal(number)
        parent.wait(10.0)
    end = time.monotonic() + 5.0
    while marked(MINE) and time.monotonic() < end:
        time.sleep(0.02)
    assert marked(MINE) == []


def test_what_the_worker_was_told_is_json_and_nothing_else(tmp_path):
    process = adapter(tmp_path, "return given")
    given = {"a": [1, 2.5, None, True], "b": {"c": "ä"}}
    assert process.call("x", given) == json.loads(json.dumps(given))
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        process.call("x", {"a": np.zeros(1)})
    process.close()
