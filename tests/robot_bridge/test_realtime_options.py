"""Real-time options as the system takes or refuses them, in processes of their own."""

import ast
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from robot_bridge.launching import node_settings, realtime
from robot_bridge.launching.realtime import RealtimeOptions

ROOT = Path(__file__).parents[2]
START = """
import os, re, resource, threading
from pathlib import Path
from robot_bridge.launching.realtime import RealtimeOptions, apply_to_process, apply_to_thread

os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whatever the tests run under

def attempt(apply, **options):
    try:
        apply(RealtimeOptions(**options))
    except ValueError as error:
        return str(error)

def locked_kb():
    return int(re.search(r"VmLck:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def beside(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]

def no_rights():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    if os.getuid() == 0:
        os.setuid(65534)
"""


def run(code):
    """Return what a process printed as a Python value."""
    done = subprocess.run(
        [sys.executable, "-c", START + code], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def test_the_defaults_change_nothing_and_need_no_rights():
    code = (
        "no_rights()\n"
        "before = os.sched_getaffinity(0), os.sched_getscheduler(0), locked_kb()\n"
        "said = attempt(apply_to_process), attempt(apply_to_thread)\n"
        "after = os.sched_getaffinity(0), os.sched_getscheduler(0), locked_kb()\n"
        "print((said, before == after))"
    )
    assert run(code) == ((None, None), True)


def test_every_thread_runs_on_the_wanted_cpus():
    cpu = max(os.sched_getaffinity(0))
    code = (
        "ready, over = threading.Event(), threading.Event()\n"
        "early = threading.Thread(target=lambda: (ready.set(), over.wait()))\n"
        "early.start()\n"
        "ready.wait()\n"
        f"said = attempt(apply_to_process, cpu_affinity=('{cpu}',))\n"
        "cpus = [os.sched_getaffinity(t) for t in (0, early.native_id)]\n"
        "over.set()\n"
        "print((said, *cpus, beside(lambda: os.sched_getaffinity(0))))"
    )
    assert run(code) == (None, {cpu}, {cpu}, {cpu})


def test_a_process_may_leave_the_cpus_it_was_started_on():
    """As for isolated CPUs, on which nothing is started."""
    cpus = sorted(os.sched_getaffinity(0))
    code = (
        f"os.sched_setaffinity(0, {{{cpus[0]}}})\n"
        f"print((attempt(apply_to_process, cpu_affinity=('{cpus[-1]}',)), os.sched_getaffinity(0)))"
    )
    assert run(code) == (None, {cpus[-1]})


@pytest.mark.parametrize("name", ["8191", "-1", "2-3", "two", "00"])
def test_an_unknown_cpu_is_refused_with_those_there_are(name):
    known = min(os.sched_getaffinity(0))
    code = (
        "before = os.sched_getaffinity(0)\n"
        f"said = attempt(apply_to_process, cpu_affinity=('{known}', '{name}'))\n"
        "print((said, before == os.sched_getaffinity(0)))"
    )
    said, same = run(code)
    assert said.startswith(f"cpu_affinity: got CPU '{name}', expected one or more of {known}")
    assert same


def test_memory_is_locked_or_the_system_refuses():
    code = (
        "before = locked_kb()\n"
        "print((attempt(apply_to_process, lock_memory=True), locked_kb() - before))"
    )
    said, more_kb = run(code)
    if said is None:
        assert more_kb > 1000
    else:
        assert said.startswith("lock_memory: the system refused (")
        assert more_kb == 0


def test_only_the_calling_thread_gets_the_priority_or_the_system_refuses():
    code = (
        "def calling():\n"
        "    said = attempt(apply_to_thread, realtime_priority=42)\n"
        "    return said, os.sched_getscheduler(0), os.sched_getparam(0).sched_priority\n"
        "print((*beside(calling), os.sched_getscheduler(0)))"
    )
    said, scheduler, priority, other = run(code)
    assert other == os.SCHED_OTHER
    if said is None:
        assert (scheduler, priority) == (os.SCHED_FIFO, 42)
    else:
        assert said.startswith("realtime_priority: the system refused 42 (")
        assert scheduler == os.SCHED_OTHER


def test_without_rights_a_sentence_says_what_to_do():
    code = (
        "no_rights()\n"
        "print((attempt(apply_to_process, lock_memory=True),"
        " attempt(apply_to_thread, realtime_priority=42)))"
    )
    assert run(code) == (
        "lock_memory: the system refused (Operation not permitted); set memlock to unlimited in "
        "/etc/security/limits.conf and log in again, or leave it false",
        "realtime_priority: the system refused 42 (Operation not permitted); set rtprio to 42 or "
        "more in /etc/security/limits.conf and log in again, or leave it at 0",
    )


@pytest.mark.parametrize("priority", [-1, 100])
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(ValueError, match=f"^realtime_priority: got {priority}, expected 0 to 99"):
        RealtimeOptions(realtime_priority=priority)


@dataclass(frozen=True, kw_only=True)
class Settings(RealtimeOptions):
    """Parameters of a node that has these among its own."""

    rate_hz: float = 100.0
    """Rate."""


def test_settings_of_a_node_take_them_over():
    assert set(node_settings.descriptions(Settings)) == {f.name for f in fields(Settings)}
    values = {f.name: f.default for f in fields(Settings)} | {"cpu_affinity": [""]}
    assert node_settings.read(Settings, values) == Settings()


def test_the_module_needs_no_ros():
    assert "rclpy" not in Path(realtime.__file__).read_text()
