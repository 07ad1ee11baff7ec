"""The studies of the env server find what is left behind, and leave nothing themselves."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from benchmarks.sim import env_server_bench, env_server_study
from benchmarks.sim.env_server_study import MARK, Case
from sim.env_server.child import anonymous_memory


def test_kills_of_workers_and_parents_leave_nothing_and_errors_are_clear():
    kinds = [
        Case(what="kill worker", when="opening"),
        Case(what="kill worker", when="stepping", workers=2),
        Case(what="stop worker", when="resetting"),
        Case(what="fault", when="helper"),
        Case(what="kill parent", when="stepping", workers=2),
        Case(what="stop both", when="stepping"),
    ]
    tallies = env_server_study.study(6, 1, kinds)
    assert [tally.wrong for tally in tallies.values()] == [[]] * 6
    assert [tally.runs for tally in tallies.values()] == [1] * 6
    assert [tally.clear for tally in tallies.values()] == [1, 1, 1, 1, 0, 0]
    assert [tally.restarted for tally in tallies.values()] == [1, 1, 1, 1, 0, 0]


def test_what_is_left_behind_is_found(monkeypatch):
    before = env_server_study.left_over("")
    monkeypatch.setattr(env_server_study, "GONE_S", 0.1)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: "left"}) as orphan:
        file = anonymous_memory(4096)
        assert env_server_study.wait_until_gone("left", before) == {
            f"process {orphan.pid}",
            "memory /memfd:mneme-env-server (deleted) (0)",
        }
        os.close(file)
        orphan.kill()
    assert env_server_study.wait_until_gone("left", before) == set()


def test_shared_memory_that_nobody_uses_is_found_and_that_of_others_is_not(monkeypatch):
    resource_tracker.ensure_running()  # a process of Python's own, with a pipe to it
    before = env_server_study.left_over("")
    monkeypatch.setattr(env_server_study, "GONE_S", 0.1)
    memory = SharedMemory(create=True, size=4096)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    try:
        names = {
            thing for thing in env_server_study.left_over("") - before if "shared memory" in thing
        }
        assert len(names) == 2
        assert env_server_study.wait_until_gone("none", before) == set()
        leaked = Path("/dev/shm") / f"mneme-test-{os.getpid()}"
        leaked.write_bytes(b"x")
        assert env_server_study.wait_until_gone("none", before) == {f"shared memory {leaked}"}
        leaked.unlink()
    finally:
        del semaphore
        memory.close()
        memory.unlink()


def test_every_phase_and_fault_is_among_the_cases():
    kinds = env_server_study.cases()
    assert {case.when for case in kinds if case.what == "kill worker"} == set(
        env_server_study.PHASES
    )
    assert {case.when for case in kinds if case.what == "fault"} == set(env_server_study.FAULTS)
    assert len(kinds) <= 100


def test_the_bench_takes_turns_and_measures_every_step():
    taken = env_server_bench.measure("reach", 3, 2)
    assert list(taken) == ["in this process", "env server"]
    assert all(len(turns) == 2 and turns[0].shape == (3,) for turns in taken.values())
    assert all((turn > 0.0).all() for turns in taken.values() for turn in turns)


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        ("study", ["--kills", "0"], "kills: got 0, expected at least 1"),
        ("bench", ["--turns", "0"], "turns: got 0, expected at least 1"),
        ("bench", ["--task", "nothing"], "unknown task 'nothing'"),
    ],
)
def test_arguments_out_of_range_are_one_sentence_and_exit_code_1(module, words, sentence):
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.sim.env_server_{module}", *words],
        cwd=env_server_study.ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
