"""`python -m robot_bridge.fault_study`: random faults against the safety node, over real DDS.

Every schedule is drawn from its seed: the arm is armed and follows a good policy; then something
goes wrong and stays wrong. What reaches the controller is held against every limit; where the fault
has to stop the arm, it has to be at rest within the stated time, and after an e-stop or a latch
nothing may move it until it is armed anew.
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

from robot_bridge import camera_faults, graph, sabotage, share, up
from robot_bridge import limits as joint_limits
from robot_bridge.gate import DRIFT, LEASE_S
from robot_bridge.graph import SimArm
from robot_bridge.tally import Tally
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import check_least
from vla.contracts.specs import RobotSpec

ROBOT = "so101"
GOOD_STEPS = 4
"""Steps in which all is well; at the end of some of them the arm is fast."""
FAULTY_STEPS = 11
"""Steps in which something is wrong: longer than any stop takes."""
SILENT_S, BLIND_S = 0.3, 0.2
"""How long the safety node is told to wait for a chunk, and for joint states."""
ATTEMPTS = 5
"""How often a schedule may begin anew, since the machine was too busy for a good policy."""
SLACK_S = 0.15
"""Messages on their way, on a machine that others use, too."""
FOUND_S = 1.0
"""How long the services of a node take to be found once its topics are."""
WATCHED_S = 0.3
"""How long it is watched that nothing moves."""
JUMP_S = 2.0
"""By how much the clock of stamps jumps."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Sabotage an arm."""

    schedules: int = 1000
    """How many."""
    seed: int = 0
    """Of the first; each has the next."""
    policy: Path | None = None
    """Folder of `vla export`, for faults of cameras; none of those without."""
    cameras: int = 100
    """How many of those, beyond the others."""
    out: Path = Path("runs/faults")
    """Folder of faults.json and of what the nodes said."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, schedules=1, seed=0, cameras=1)


def main() -> int:
    """Run the study; 1 if a limit was broken, a stop was late, or something moved."""
    args = arguments.read(StudyArgs, sys.argv[1:], "python -m robot_bridge.fault_study")
    args.out.mkdir(parents=True, exist_ok=True)
    tally = study(args.schedules, args.seed, args.out)
    if args.policy:
        camera_faults.play(args.policy, args.cameras, args.seed, args.out, tally, SLACK_S)
    told = {
        "schedules": dict(tally.schedules), "commands": tally.commands,
        "violations": dict(tally.violations), "worst": tally.worst, "late": tally.late,
        "stops_s": tally.stops_s,
    }  # fmt: skip
    (args.out / "faults.json").write_text(json.dumps(told, indent=1))
    Console(highlight=False).print(tally.sheet())
    for line in tally.late:
        print(line, file=sys.stderr)
    return int(bool(tally.late or sum(tally.violations.values())))


def study(schedules: int, seed: int, out: Path, slack_s: float = SLACK_S) -> Tally:
    """Play schedules, one after the other, with the same nodes; killed ones are started anew.

    Args:
        schedules: How many.
        seed: Of the first.
        out: Folder for what the nodes say.
        slack_s: What a stop may take beyond what is stated, for messages on their way.
    """
    from robot_bridge.nodes.saboteur import Saboteur

    robot: RobotSpec = registry.load("vla.robots", ROBOT).SPEC
    limits = joint_limits.read(share.params() / f"{ROBOT}_limits.yaml", robot)
    simulated, safety = graph.sim_arm(SimArm(robot=ROBOT, use_sim_time=False))
    tally = Tally()
    with (
        (out / "nodes.log").open("w") as lines,
        up.started((_without_cameras(simulated),), out=lines),
        Saboteur(robot) as saboteur,
    ):
        saboteur.keep_time()
        waits = {"silent_s": SILENT_S, "blind_s": BLIND_S, "use_sim_time": True}
        guard = Guard(replace(safety, parameters={**safety.parameters, **waits}), lines)
        try:
            for number in track(range(seed, seed + schedules), "sabotage", transient=True):
                play(saboteur, guard, robot, limits, number, tally, slack_s)
        finally:
            guard.end()
    return tally


class Guard:
    """The safety node's process, which may be killed."""

    def __init__(self, node: graph.NodeSpec, lines: Any) -> None:
        self.words = [*_child(), node.module, "--ros-args", *graph.told(node)]
        self.lines = lines
        self.start()

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, **up.discovery(dict(os.environ))}
        self.process = subprocess.Popen(
            self.words, stdout=self.lines, stderr=subprocess.STDOUT, env=environment
        )

    def kill(self) -> None:
        """Kill it, at once."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def play(
    saboteur: Any, guard: Guard, robot: RobotSpec, limits: joint_limits.Limits, number: int,
    tally: Tally, slack_s: float,
) -> None:  # fmt: skip
    """Play one schedule and add what was found."""
    rng = np.random.default_rng(number)
    kinds = [*sabotage.STOPPING, *sabotage.MOVING, *EVENTS]
    kind = kinds[number % len(kinds)]
    for _ in range(ATTEMPTS):
        victim = _begin(saboteur, kind, number)
        path = sabotage.Path(robot, rng, saboteur.pose)
        steps = GOOD_STEPS + int(rng.integers(4))
        for k in range(steps):
            saboteur.send(path.chunk(k))
            time.sleep(sabotage.PERIOD_S * (1 if k else rng.uniform(0.2, 1)))
        if saboteur.state == "following":
            break
        # The machine was too busy for a good policy: the arm stands, and there is nothing to stop.
        tally.again += 1
        _end(victim)
    else:
        raise ValueError(
            f"schedule {number}: a good policy was stopped {ATTEMPTS} times: "
            f"{saboteur.heard['safety_node']}; run it on a machine with time"
        )
    begin_s, due_s = time.monotonic(), slack_s + float(saboteur.heard["safety_node"]["stop_s"])
    if kind in EVENTS:
        due_s += EVENTS[kind](saboteur, guard, victim)
        fault: sabotage.Fault | None = None if kind in DEAF else (lambda *_: [])
    else:
        fault = {**sabotage.STOPPING, **sabotage.MOVING}[kind]
        due_s += SILENT_S if kind == "silence" else sabotage.PERIOD_S
    due_s += _go_on(saboteur, path, steps, fault, rng)
    _end(victim)
    times_s, commands = saboteur.taken()
    tally.keep(kind, commands, limits)
    if kind not in sabotage.MOVING:
        tally.stop(kind, number, times_s, commands, begin_s, due_s)


def _begin(saboteur: Any, kind: str, number: int) -> subprocess.Popen[bytes] | None:
    """Put the arm back and arm it; return the policy, if it is a process of its own."""
    saboteur.repair(number)
    victim = _victim(saboteur) if kind in VICTIMS else None
    saboteur.taken()
    saboteur.enable(True)
    if victim is None:
        saboteur.speak()
    else:
        saboteur.wait(lambda: saboteur.state != "holding", "the policy")
    return victim


def _go_on(
    saboteur: Any, path: sabotage.Path, step: int, fault: sabotage.Fault | None,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """Send what a fault makes of good chunks for a while; good ones if there is none.

    Returns:
        By how many seconds a step was late at most: the machine's own time, which is no fault's.
    """
    late_s = 0.0
    for k in range(step, step + FAULTY_STEPS):
        begin_s, chunk = time.monotonic(), path.chunk(k)
        for one in fault(chunk, rng, path) if fault else [chunk]:
            saboteur.send(one)
        time.sleep(sabotage.PERIOD_S)
        late_s = max(late_s, time.monotonic() - begin_s - sabotage.PERIOD_S)
    return late_s


def _estop(saboteur: Any, guard: Guard, victim: Any) -> float:
    saboteur.estop()
    return 0.0


def _killed(saboteur: Any, guard: Guard, victim: Any) -> float:
    victim.kill()
    victim.wait()
    return LEASE_S


def _hung(saboteur: Any, guard: Guard, victim: Any) -> float:
    victim.send_signal(signal.SIGSTOP)
    return LEASE_S


def _jump(ahead_s: float) -> Callable[[Any, Guard, Any], float]:
    def event(saboteur: Any, guard: Guard, victim: Any) -> float:
        saboteur.ahead_s = ahead_s
        return 0.0

    return event


def _clock_stands(saboteur: Any, guard: Guard, victim: Any) -> float:
    saboteur.stands_s = time.time()
    return SILENT_S / (1 - DRIFT)


def _guard_killed(saboteur: Any, guard: Guard, victim: Any) -> float:
    guard.kill()
    saboteur.heard.pop("safety_node", None)
    time.sleep(WATCHED_S)
    guard.start()
    saboteur.wait(lambda: "safety_node" in saboteur.heard, "the safety node")
    time.sleep(FOUND_S)
    return 0.0


def _sensor(name: str) -> Callable[[Any, Guard, Any], float]:
    def event(saboteur: Any, guard: Guard, victim: Any) -> float:
        saboteur.set("sim_arm", **{name: ["joint_states"]})
        return BLIND_S

    return event


EVENTS: dict[str, Callable[[Any, Guard, Any], float]] = {
    "e-stop": _estop, "policy killed": _killed, "policy hangs": _hung,
    "safety node killed": _guard_killed, "joint states silent": _sensor("silent"),
    "clock jumps ahead": _jump(JUMP_S), "clock jumps back": _jump(-JUMP_S),
    "clock stands": _clock_stands,
}  # fmt: skip
"""Faults that are no chunks; each returns what the safety node may wait before it acts."""
VICTIMS = ("policy killed", "policy hangs")
"""In which the policy is a process of its own."""
DEAF = ("e-stop", "clock jumps ahead", "clock jumps back", "clock stands")
"""In which good chunks go on coming, and are not to be followed."""


def _victim(saboteur: Any) -> subprocess.Popen[bytes]:
    """Start a good policy in a process of its own, and wait until it speaks."""
    saboteur.silence()
    found = subprocess.Popen(
        [*_child(), "robot_bridge.nodes.saboteur"],
        env={**os.environ, **up.discovery(dict(os.environ))},
    )
    saboteur.wait_for_chunks()
    return found


def _child() -> list[str]:
    """Return the words before a module that ends with this process, however that ends."""
    return [sys.executable, "-m", "robot_bridge.child", str(os.getpid())]


def _end(victim: subprocess.Popen[bytes] | None) -> None:
    """End a policy's process, whatever became of it."""
    if victim is not None:
        victim.kill()
        victim.wait()


def _without_cameras(node: graph.NodeSpec) -> graph.NodeSpec:
    return replace(node, parameters={**node.parameters, "camera_hz": 0})


if __name__ == "__main__":
    raise SystemExit(main())
