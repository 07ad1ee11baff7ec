"""Random faults against the safety node, over real DDS.

`python -m benchmarks.robot_bridge.fault_study --schedules 1000`

Every schedule follows from its seed: the arm is enabled and follows a good policy; then a fault
begins and stays. All trajectories are played into emulated controllers of 500 Hz and 1 kHz, where
one in twenty comes a cycle late; there the reference is checked against every limit. Where the
fault must stop the arm, it must be at rest within the stated time, and after an e-stop or a latch
nothing may move it until it is enabled again. Also when the safety node itself is at fault.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.robot_bridge import camera_faults, chunk_faults, controller_replay
from benchmarks.robot_bridge.fault_report import Tally
from robot_bridge.launching import graph, package_files, up
from robot_bridge.launching.graph import SimArm
from robot_bridge.motion import limits as joint_limits
from robot_bridge.safety.gate_config import DRIFT, LEASE_S, GateConfig
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.utils import arguments

ROBOT = "so101"
FAULTY = "benchmarks.robot_bridge.faulty_safety_node"
"""Module of the safety node with faults on request."""
GOOD_STEPS = 4
"""Steps before the fault; at the end of some of them the arm is fast."""
FAULTY_STEPS = 11
"""Steps with the fault: longer than any stop takes."""
SILENT_S, BLIND_S = 0.3, 0.2
"""Timeouts of the safety node for a chunk and for joint states."""
ATTEMPTS = 5
"""How often a schedule may be repeated because the machine was too busy for a good policy."""
SLACK_S = 0.15
"""Transport time of messages on a busy machine."""
FOUND_S = 1.0
"""Discovery time of a node's services after its topics."""
WATCHED_S = 0.6
"""Time after which nothing may move."""
TICK_S = 0.01
OVERDUE_S = (GateConfig.lead_ticks - 2) * TICK_S - 2 / controller_replay.RATES_HZ[0]
"""How late a trajectory may come, less the cycle that some are later."""
JUMP_S = 2.0
"""Jump of the clock of stamps."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Inject faults against the safety node."""

    schedules: int = 1000
    """Number of schedules."""
    seed: int = 0
    """Seed of the first schedule; each has the next."""
    kinds: tuple[str, ...] = ()
    """Kinds of faults, such as "safety node killed"; all in turn if empty."""
    policy: Path | None = None
    """Exported policy for camera faults; without it there are none."""
    cameras: int = 100
    """Schedules with camera faults, in addition."""
    out: Path = Path("runs/faults")
    """Folder of faults.json and the nodes' logs."""

    def __post_init__(self) -> None:
        validate_min(self, schedules=1, seed=0, cameras=1)
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"kinds: got {unknown[0]!r}, expected some of {', '.join(KINDS)}")


def main() -> int:
    """Run the study; 1 if a limit was broken, a stop was late, or something moved."""
    args = arguments.read(StudyArgs, sys.argv[1:], "python -m benchmarks.robot_bridge.fault_study")
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(up.discovery(dict(os.environ)))  # of the node in this process, too
    tally = Tally()
    try:
        study(args.schedules, args.seed, args.out, kinds=args.kinds, tally=tally)
        if args.policy:
            camera_faults.play(args.policy, args.cameras, args.seed, args.out, tally, SLACK_S)
    finally:
        _report(tally, args.out)
    for line in tally.late + tally.beyond:
        print(line, file=sys.stderr)
    return int(bool(tally.late or sum(tally.violations.values())))


def _report(tally: Tally, out: Path) -> None:
    """Write and print what there is, also of a study that was interrupted."""
    results = {
        "schedules": dict(tally.schedules), "commands": tally.commands,
        "violations": dict(tally.violations), "worst": tally.worst, "late": tally.late,
        "stops_s": tally.stops_s,
    }  # fmt: skip
    (out / "faults.json").write_text(json.dumps(results, indent=1))
    Console(highlight=False).print(tally.sheet())


def study(
    schedules: int, seed: int, out: Path, slack_s: float = SLACK_S, kinds: tuple[str, ...] = (),
    tally: Tally | None = None,
) -> Tally:  # fmt: skip
    """Run schedules, one after the other, with the same nodes; killed nodes are restarted.

    Args:
        schedules: Number of schedules.
        seed: Seed of the first.
        out: Folder for the nodes' logs.
        slack_s: Time that a stop may take beyond the stated one, for transport.
        kinds: Kinds of faults in turn; all if empty.
        tally: What to add to; a new one if None.
    """
    from benchmarks.robot_bridge.fault_injector import FaultInjector

    robot: RobotSpec = registry.load("vla.robots", ROBOT).SPEC
    limits = joint_limits.read(package_files.params() / f"{ROBOT}_limits.yaml", robot)
    simulated, safety = graph.sim_arm(SimArm(robot=ROBOT, use_sim_time=False))
    tally = tally or Tally()
    with (
        (out / "nodes.log").open("w") as lines,
        up.started((_without_cameras(simulated),), out=lines),
        FaultInjector(robot) as injector,
    ):
        injector.keep_time()
        waits = {"command_timeout_s": SILENT_S, "joint_state_timeout_s": BLIND_S}
        guard = Guard(replace(safety, parameters={**safety.parameters, **waits}), lines)
        try:
            for number in track(range(seed, seed + schedules), "injecting faults", transient=True):
                kind = (kinds or KINDS)[number % len(kinds or KINDS)]
                try:
                    play(injector, guard, robot, limits, number, kind, tally, slack_s)
                except ValueError as error:
                    print(f"schedule {number}, {kind}: {error}", file=sys.stderr, flush=True)
                    raise
        finally:
            guard.end()
    return tally


class Guard:
    """The safety node's process, which may fail and be killed."""

    def __init__(self, node: graph.NodeSpec, lines: Any) -> None:
        self.node, self.lines = node, lines
        self.simulated_clock = False
        self.start()

    def start(self) -> None:
        """Start the process."""
        clock = {"use_sim_time": self.simulated_clock}
        node = replace(self.node, parameters={**self.node.parameters, **clock})
        words = [*_child(), FAULTY, "--ros-args", *graph.ros_arguments(node)]
        self.process = subprocess.Popen(
            words, stdout=self.lines, stderr=subprocess.STDOUT,
            env={**os.environ, **up.discovery(dict(os.environ))},
        )  # fmt: skip

    def restart(self, injector: Any) -> None:
        """Start the process again, after it has ended, and wait until it answers."""
        injector.heard.pop("safety_node", None)
        self.start()
        injector.wait(lambda: "safety_node" in injector.heard, "the safety node")
        time.sleep(FOUND_S)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End the process."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def play(
    injector: Any, guard: Guard, robot: RobotSpec, limits: joint_limits.Limits, number: int,
    kind: str, tally: Tally, slack_s: float,
) -> None:  # fmt: skip
    """Run one schedule and add its results."""
    rng = np.random.default_rng(number)
    for _ in range(ATTEMPTS):
        victim = _begin(injector, guard, kind, number)
        path = chunk_faults.Path(robot, rng, injector.pose)
        steps = GOOD_STEPS + int(rng.integers(4))
        for k in range(steps):
            injector.send(path.chunk(k))
            time.sleep(chunk_faults.PERIOD_S * (1 if k else rng.uniform(0.2, 1)))
        if injector.state == "tracking":
            break
        # The machine was too busy for a good policy: the arm stands, and there is nothing to stop.
        tally.again += 1
        _end(victim)
    else:
        raise ValueError(
            f"schedule {number}: a good policy was stopped {ATTEMPTS} times: "
            f"{injector.heard['safety_node']}; run it on a machine with time"
        )
    stop_s = float(injector.heard["safety_node"]["stop_s"])
    begin_s, due_s = injector.now_s(), slack_s + GateConfig.lead_ticks * TICK_S + stop_s
    if kind in EVENTS:
        due_s += EVENTS[kind](injector, guard, victim)
        fault: chunk_faults.Fault | None = None if kind in DEAF else (lambda *_: [])
    else:
        fault = {**chunk_faults.STOPPING, **chunk_faults.MOVING}[kind]
        due_s += SILENT_S if kind == "silence" else chunk_faults.PERIOD_S
    due_s += _continue(injector, path, steps, fault, rng)
    _end(victim)
    end_s, messages = injector.now_s(), injector.taken()
    overdue = kind not in CLOCKS and controller_replay.latest_s(messages, TICK_S) > OVERDUE_S
    if kind in CLOCKS:  # the controller's clock would be the faulty one as well
        messages = controller_replay.by_ticks(messages, TICK_S)
        begin_s, end_s = 0.0, messages[-1][0] + due_s
    stops = kind not in chunk_faults.MOVING or injector.state in ("stopping", "latched_fault")
    worst, reference = controller_replay.judge(
        messages, limits, number, end_s, begin_s if stops else np.inf
    )
    tally.overdue += overdue
    tally.keep(kind, number, len(messages), {} if overdue else worst)
    if kind not in chunk_faults.MOVING and kind not in CLOCKS:
        times_s = np.arange(len(reference)) / controller_replay.RATES_HZ[0]
        tally.stop(kind, number, times_s, reference, begin_s, due_s)


def _begin(injector: Any, guard: Guard, kind: str, number: int) -> subprocess.Popen[bytes] | None:
    """Put the arm back and arm it; return the policy, if it is a process of its own."""
    if guard.simulated_clock != (kind in CLOCKS):
        guard.simulated_clock = kind in CLOCKS
        guard.kill()
        guard.restart(injector)
    injector.repair(number)
    victim = _victim(injector) if kind in VICTIMS else None
    injector.taken()
    injector.enable(True)
    if victim is None:
        injector.speak()
    else:
        injector.wait(lambda: injector.state != "holding", "the policy")
    return victim


def _continue(
    injector: Any, path: chunk_faults.Path, step: int, fault: chunk_faults.Fault | None,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """Send what a fault makes of good chunks for a while; good ones if there is none.

    Returns:
        By how many seconds a step was late at most: the machine's own time, which is no fault's.
    """
    late_s = 0.0
    for k in range(step, step + FAULTY_STEPS):
        begin_s, chunk = time.monotonic(), path.chunk(k)
        for faulty in fault(chunk, rng, path) if fault else [chunk]:
            injector.send(faulty)
        time.sleep(chunk_faults.PERIOD_S)
        late_s = max(late_s, time.monotonic() - begin_s - chunk_faults.PERIOD_S)
    return late_s


def _estop(injector: Any, guard: Guard, victim: Any) -> float:
    injector.estop()
    return 0.0


def _killed(injector: Any, guard: Guard, victim: Any) -> float:
    victim.kill()
    victim.wait()
    return LEASE_S


def _hung(injector: Any, guard: Guard, victim: Any) -> float:
    victim.send_signal(signal.SIGSTOP)
    return LEASE_S


def _jump(ahead_s: float) -> Callable[[Any, Guard, Any], float]:
    def event(injector: Any, guard: Guard, victim: Any) -> float:
        injector.ahead_s = ahead_s
        return 0.0

    return event


def _clock_stands(injector: Any, guard: Guard, victim: Any) -> float:
    injector.stands_s = time.time()
    return SILENT_S / (1 - DRIFT)


def _guard_ends(how: Callable[[Any, Guard], Any]) -> Callable[[Any, Guard, Any], float]:
    """Return an event that ends the safety node; only the controller can stop the arm then."""

    def event(injector: Any, guard: Guard, victim: Any) -> float:
        how(injector, guard)
        time.sleep(WATCHED_S)
        guard.kill()
        guard.restart(injector)
        return 0.0

    return event


def _sensor(name: str) -> Callable[[Any, Guard, Any], float]:
    def event(injector: Any, guard: Guard, victim: Any) -> float:
        injector.set("sim_arm", **{name: ["joint_states"]})
        return BLIND_S

    return event


EVENTS: dict[str, Callable[[Any, Guard, Any], float]] = {
    "e-stop": _estop, "policy killed": _killed, "policy hangs": _hung,
    "safety node killed": _guard_ends(lambda _, guard: guard.kill()),
    "safety node interrupted": _guard_ends(
        lambda _, guard: guard.process.send_signal(signal.SIGINT)
    ),
    "safety node suspended": _guard_ends(
        lambda _, guard: guard.process.send_signal(signal.SIGSTOP)
    ),
    "safety node's tick fails": _guard_ends(lambda injector, _: injector.fail("raise")),
    "safety node's tick hangs": _guard_ends(lambda injector, _: injector.fail("hang")),
    "joint states silent": _sensor("silent"),
    "clock jumps ahead": _jump(JUMP_S), "clock jumps back": _jump(-JUMP_S),
    "clock stands": _clock_stands,
}  # fmt: skip
"""Faults that are no chunks; each returns what the safety node may wait before it acts."""
VICTIMS = ("policy killed", "policy hangs")
"""In which the policy is a process of its own."""
CLOCKS = ("clock jumps ahead", "clock jumps back", "clock stands")
"""In which stamps come from a simulated clock."""
DEAF = ("e-stop", "clock jumps ahead", "clock jumps back", "clock stands")
"""In which good chunks go on coming, and are not to be followed."""


def _victim(injector: Any) -> subprocess.Popen[bytes]:
    """Start a good policy in a process of its own, and wait until it speaks."""
    injector.silence()
    process = subprocess.Popen(
        [*_child(), "benchmarks.robot_bridge.fault_injector"],
        env={**os.environ, **up.discovery(dict(os.environ))},
    )
    injector.wait_for_chunks()
    return process


def _child() -> list[str]:
    """Return the words before a module that ends with this process, however that ends."""
    return [sys.executable, "-m", "robot_bridge.launching.child", str(os.getpid())]


def _end(victim: subprocess.Popen[bytes] | None) -> None:
    """End a policy's process, whatever became of it."""
    if victim is not None:
        victim.kill()
        victim.wait()


def _without_cameras(node: graph.NodeSpec) -> graph.NodeSpec:
    return replace(node, parameters={**node.parameters, "camera_hz": 0})


KINDS = (*chunk_faults.STOPPING, *chunk_faults.MOVING, *EVENTS)
"""All kinds of faults."""


if __name__ == "__main__":
    raise SystemExit(main())
