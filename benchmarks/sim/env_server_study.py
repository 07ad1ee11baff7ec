"""Kills workers and parents of the env server at random moments and looks for leftovers.

`python -m benchmarks.sim.env_server_study --kills 100`

After each kill, a step must have failed with a clear error, the next reset must work as usual, and
no process, no open file and no shared memory may be left. Half of the cases run a built-in task and
render images; the others run a point whose adapter fails on request.
"""

import dataclasses
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sim import adapters
from sim.backends.process import AdapterVecEnv
from sim.env_server.client import EnvServerError, Process
from sim.suites import gymnasium_env
from vla import cli
from vla.contracts.config import validate_min
from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec
from vla.contracts.types import Observation
from vla.utils import arguments

MARK = "MNEME_BRIDGE_STUDY"
"""Environment variable that marks the processes of one case."""
POINT = Path(__file__).with_name("_fault_env.py")
ROOT = Path(adapters.__path__[0]).parents[1]
TASK = "sim.gym_plugin:mneme/Reach-v0"
PHASES = ("opening", "resetting", "stepping", "rendering")
CHUNK = 8
FAULTS = ("raise", "exit", "quit", "crash", "hang", "hold", "chatter", "helper")
HARMLESS = ("chatter",)
"""Faults that a simulator survives."""
HEARTBEAT_TIMEOUT_S, STEP_TIMEOUT_S = 3.0, 6.0
PATIENCE_S = 40.0
"""Longest time of a case until its error."""
SHARED = "shared memory "
GONE_S = 5.0
"""How long processes may stay visible after their end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Kill simulators and their parents."""

    kills: int = 100
    """Number of kills."""
    seed: int = 0
    """Seed of the moments."""

    def __post_init__(self) -> None:
        validate_min(self, kills=1, seed=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What goes wrong."""

    what: str
    """"kill worker", "stop worker", "kill parent", "interrupt parent", "stop both" or "fault"."""
    when: str
    """One of `PHASES`, or the fault."""
    pictures: bool = False
    """Whether it is one of our tasks, which draws, or the point."""
    workers: int = 1
    """How many play."""


@dataclasses.dataclass
class Tally:
    """What came of one kind of case."""

    runs: int = 0
    clear: int = 0
    """Of those whose parent lived: how many saw a clear error."""
    restarted: int = 0
    """How many of those played on after a reset, with what they had seen before."""
    left: int = 0
    """Processes, open files and shared memory left behind."""
    wrong: list[str] = dataclasses.field(default_factory=list)
    """What was not as it should be, in words."""


def main(argv: list[str]) -> int:
    """Run the study; 1 if anything was left behind or any error was not clear."""
    args = arguments.read(StudyArgs, argv, "python -m benchmarks.sim.env_server_study")
    tallies = study(args.kills, args.seed)
    table = Table("what", "when", "runs", "clear error", "restarted", "left behind")
    for (what, when), tally in tallies.items():
        lives = "parent" not in what and what != "stop both"
        clear, restarted = (str(n) if lives else "" for n in (tally.clear, tally.restarted))
        table.add_row(what, when, str(tally.runs), clear, restarted, str(tally.left))
    Console(highlight=False).print(table)
    wrong = [line for tally in tallies.values() for line in tally.wrong]
    for line in wrong:
        print(line, file=sys.stderr)
    runs, left = sum(t.runs for t in tallies.values()), sum(t.left for t in tallies.values())
    print(f"{runs} kills, {len(wrong)} of them wrong, {left} things left behind")
    return int(bool(wrong))


def cases() -> list[Case]:
    """Return every kind of case once."""
    cases = [
        Case(what=what, when=phase, pictures=pictures, workers=1 + pictures)
        for pictures in (False, True)
        for phase in PHASES
        for what in ("kill worker", "kill parent")
    ]
    cases += [Case(what="fault", when=fault) for fault in FAULTS]
    cases += [Case(what="stop worker", when=phase) for phase in ("opening", "stepping")]
    cases += [Case(what="stop both", when=phase) for phase in ("resetting", "stepping")]
    cases += [Case(what="interrupt parent", when="stepping"), Case(what="kill parent", when="hold")]
    return cases


def study(kills: int, seed: int, kinds: list[Case] | None = None) -> dict[Any, Tally]:
    """Play cases in turn, each at a moment drawn from the seed.

    Args:
        kills: How many.
        seed: Of the moments.
        kinds: Which cases; all if None.

    Returns:
        What came of each (what, when).
    """
    kinds = kinds or cases()
    rng = np.random.default_rng(seed)
    tallies: dict[Any, Tally] = {}
    before = left_over("")
    for number in track(range(kills), "kills", transient=True):
        case, mark = kinds[number % len(kinds)], secrets.token_hex(8)
        tally = tallies.setdefault((case.what, case.when), Tally())
        tally.runs += 1
        try:
            if case.what in ("kill parent", "interrupt parent", "stop both"):
                end_parent(case, mark, rng)
            else:
                end_worker(case, mark, rng, tally)
        except (AssertionError, EnvServerError) as error:
            tally.wrong.append(f"case {number}, {case}: {error}")
        left = wait_until_gone(mark, before)
        tally.left += len(left)
        tally.wrong += [f"case {number}, {case}: left {thing}" for thing in left]
    return tallies


# --- a worker dies --------------------------------------------------------------------------------


def end_worker(case: Case, mark: str, rng: np.random.Generator, tally: Tally) -> None:
    """Let a worker die while we use it, and go on after it."""
    fault = {"fault": case.when, "at": int(rng.integers(2, 20))} if case.what == "fault" else {}
    if fault and rng.random() < 0.25:
        fault["at"] = "open"
    delay_s = float(rng.uniform(0.0, 1.5 if case.pictures else 0.3))
    number = signal.SIGSTOP if case.what == "stop worker" else signal.SIGKILL
    killer = threading.Thread(target=send, args=(mark, number, delay_s, int(rng.integers(99))))
    early = case.when == "opening"
    if early:
        killer.start()
    env: AdapterVecEnv | None = None
    reference: Observation | None = None
    error: EnvServerError | None = None
    try:
        env = make(case, mark, fault)
        reference = env.reset(5)
        if case.what != "fault" and not early:
            killer.start()
        play(env, case.when, PATIENCE_S)
    except EnvServerError as caught:
        error = caught
    if killer.ident is not None:
        killer.join()
    if case.when in HARMLESS:
        assert error is None, f"it went wrong: {error}"
    else:
        assert error is not None, "no error"
        first = str(error).splitlines()[0]
        assert "simulator" in first, f"not a clear error: {error}"
        assert first.count(":") >= 2, f"not a clear error: {error}"
    tally.clear += 1
    if env is None:
        env = make(case, mark, {})
    again = env.reset(5)
    if reference is not None:
        assert np.array_equal(again.images, reference.images), "other pictures after the restart"
    tally.restarted += 1
    env.close()


def play(env: AdapterVecEnv, phase: str, seconds: float) -> None:
    """Use environments in the way of a phase for some time, or until they fail."""
    rng, end = np.random.default_rng(0), time.monotonic() + seconds
    low, high = np.array(env.spec.robot.low), np.array(env.spec.robot.high)
    steps = 0
    while time.monotonic() < end:
        if phase == "resetting":
            env.reset(steps)
        length = 1 if phase == "rendering" else CHUNK
        if phase != "resetting":
            shape = (env.num_envs, length, len(low))
            env.step_chunk(rng.uniform(low, high, shape).astype(np.float32))
        steps += 1
        if phase in HARMLESS and steps > CHUNK:
            return


# --- a parent dies --------------------------------------------------------------------------------


def end_parent(case: Case, mark: str, rng: np.random.Generator) -> None:
    """Let a process die that uses workers."""
    arguments = repr((dataclasses.asdict(case), mark))
    code = f"from benchmarks.sim import env_server_study; env_server_study.parent(*{arguments})"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environ, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        words = process.stdout.readline()  # "opening"
        if case.when != "opening":
            words = process.stdout.readline()
        assert words, "the parent died of itself"
        time.sleep(float(rng.uniform(0.0, 1.5 if case.pictures else 0.3)))
        if case.what == "stop both":
            send(mark, signal.SIGSTOP, 0.0, 0, but=process.pid)
        process.send_signal(signal.SIGINT if case.what == "interrupt parent" else signal.SIGKILL)
        process.wait(PATIENCE_S)


def parent(case: dict[str, Any], mark: str) -> None:
    """Be the process that dies: use workers until then, and say what is going on."""
    what = Case(**case)
    print("opening", flush=True)
    fault = {"fault": "hold", "at": 2} if what.when == "hold" else {}
    env = make(what, mark, fault, heartbeat_timeout_s=60.0, step_timeout_s=60.0)
    env.reset(5)
    print("playing", flush=True)
    play(env, what.when, 60.0)


# --- what it is done with, and what is left -------------------------------------------------------


def make(
    case: Case,
    mark: str,
    fault: dict[str, Any],
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    step_timeout_s: float = STEP_TIMEOUT_S,
) -> AdapterVecEnv:
    """Return two environments in processes that carry the mark."""
    task = gymnasium_env.Config(name=TASK, path=str(ROOT))
    options = task.options() if case.pictures else fault
    adapter = task.adapter() if case.pictures else POINT

    def start(rows: range) -> Process:
        return Process(
            Path(sys.executable),
            adapter,
            {"rows": [rows.start, rows.stop], "num_envs": 2, "randomize": True, **options},
            startup_timeout_s=20.0 if case.pictures else STEP_TIMEOUT_S,
            step_timeout_s=20.0 if case.pictures else step_timeout_s,
            heartbeat_timeout_s=10.0 if case.pictures else heartbeat_timeout_s,
            environ={MARK: mark},
        )

    robot = task.arm() if case.pictures else point()
    return AdapterVecEnv("study", robot, 2, start, case.workers)


def point() -> RobotSpec:
    """Return the arm of the point that `_fault_env.py` plays."""
    channels = tuple(
        Channel(
            name=name, unit="1", low=-1.0, high=1.0, velocity=20.0, acceleration=400.0,
            jerk=16000.0, source="a study's",
        )
        for name in ("x", "y")
    )  # fmt: skip
    cameras = tuple(
        CameraSpec(
            name=name, body="world", pos_m=(0.0,) * 3, target_m=(0.0,) * 3, fovy_deg=45.0,
            width_px=16, height_px=16,
        )
        for name in ("front", "wrist")
    )  # fmt: skip
    return RobotSpec(
        name="point", channels=channels, gripper=Gripper(channel="y", open=1.0, closed=-1.0),
        home=(0.0, 0.0), cameras=cameras, control_hz=10.0, mjcf="",
    )  # fmt: skip


def send(mark: str, number: int, delay_s: float, which: int, but: int = 0) -> None:
    """Send a signal to one of the workers of a mark, some time after there is one."""
    end = time.monotonic() + PATIENCE_S
    time.sleep(delay_s)
    while time.monotonic() < end:
        pids = [pid for pid in marked(mark) if pid != but]
        if pids:
            os.kill(pids[which % len(pids)], number)
            return
        time.sleep(0.01)


def marked(mark: str) -> list[int]:
    """Return the processes that carry a mark, none that has ended."""
    pids = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                pids.append(int(place.name))
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return pids


def left_over(mark: str) -> set[str]:
    """Return what might leak: processes of a mark, our open files, and shared memory."""
    here = Path("/proc/self/fd")
    files = [os.readlink(file) for file in here.iterdir() if file.is_symlink()]
    shared = [f for f in files if "mneme-env-server" in f]
    leftovers = {f"memory {file} ({i})" for i, file in enumerate(shared)}
    kinds = ("socket:", "pipe:")
    leftovers |= {f"a {k} ({i})" for k in kinds for i, _ in enumerate(f for f in files if k in f)}
    leftovers |= {f"process {pid}" for pid in (marked(mark) if mark else [])}
    return leftovers | {f"{SHARED}{path}" for path in Path("/dev/shm").iterdir()}


def _held(left: set[str]) -> set[str]:
    """Return which of what is left is shared memory that some process still uses, or is gone."""
    numbers = {}
    for thing in left:
        if thing.startswith(SHARED):
            place = Path(thing.removeprefix(SHARED))
            # By number: a semaphore is mapped under a name that it lost before it got its own.
            numbers[thing] = str(place.stat().st_ino) if place.exists() else ""
    used = {""}
    for place in Path("/proc").glob("[0-9]*/maps") if numbers else ():
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        used |= {line.split()[4] for line in lines if "/dev/shm/" in line}
    return {thing for thing, number in numbers.items() if number in used}


def wait_until_gone(mark: str, before: set[str]) -> set[str]:
    """Return what is left that was not there before, once nothing more of it goes away."""
    end = time.monotonic() + GONE_S
    while (left := left_over(mark) - before) and time.monotonic() < end:
        if not left - _held(left):
            return set()  # memory of other programs on this machine
        time.sleep(0.02)
    return left - _held(left)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.env_server_study:main", sys.argv[1:]))
