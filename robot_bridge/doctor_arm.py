"""`vla doctor arm`: checks an arm's topics, and its first motions, before a policy moves it."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from robot_bridge.launching import driver, package_files
from robot_bridge.motion import limits
from robot_bridge.sensing import arm_checks
from robot_bridge.sensing.arm_checks import Finding
from vla.contracts import robot_file
from vla.contracts.specs import RobotSpec
from vla.utils import arguments

STEP = 0.05
"""Motion of each joint in rad, or a tenth of it in m."""
SLOW = 0.1
"""Largest max_velocity_scaling_factor with which joints are moved."""
MOTION_S, LEAD_S, REST_S = 20.0, 0.2, 1.0
"""Longest time of a motion; time after which a latched arm has to stand, and for how long."""
ANSWER_S = 600.0
"""Longest time that a person may take to answer."""
MARKS = {"works": "ok", "wrong": "WRONG", "not checked": "-"}


@dataclass(frozen=True, kw_only=True)
class DoctorArmArgs:
    """Check an arm and its driver; with --motion also move each joint a little."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    driver: str = ""
    """Driver file, or its name under launch/drivers."""
    limits: str = ""
    """The safety node's limits file; the robot's under launch/params if empty."""
    namespace: str = ""
    """Namespace of the arm."""
    cameras: tuple[str, ...] = ()
    """Cameras; those of the robot if empty."""
    compressed: bool = False
    """Whether images come as cameras/NAME/image_raw/compressed."""
    listen_s: float = 5.0
    """Time for which messages are gathered."""
    motion: bool = False
    """Whether to enable the safety node and move each joint by 0.05 rad (5 mm), then to press the
    e-stop; needs a safety node at a tenth of the speed and asks before."""
    yes: bool = False
    """Whether to move without questions; somebody holds the hardware e-stop anyway."""
    operator: str = ""
    """Who answers for the report."""
    out: Path = Path("arm-report.json")
    """File of the report."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.listen_s <= 600:
            raise ValueError(f"listen_s: got {self.listen_s}, expected 0.5 to 600")


def main(argv: list[str]) -> int:
    """Run `vla doctor arm`; 1 if something is wrong.

    Raises:
        ValueError: an argument is wrong, or the safety node refuses.
    """
    args = arguments.read(DoctorArmArgs, argv, "vla doctor arm")
    robot: RobotSpec = robot_file.load(args.robot)
    arm = driver.read(args.driver, robot)
    file = Path(args.limits or package_files.params() / f"{robot.name}_limits.yaml")
    allowed = limits.read(file, robot) if args.limits or file.is_file() else limits.of_spec(robot)
    from robot_bridge.nodes.arm_doctor import ArmDoctor

    options: dict[str, Any] = {
        "namespace": args.namespace, "cameras": args.cameras, "compressed": args.compressed,
    }  # fmt: skip
    findings: list[Finding] = []
    with ArmDoctor(robot, arm, args.driver, **options) as doctor:
        print(f"listening for {args.listen_s:g} s", flush=True)
        doctor.listen(args.listen_s)
        try:
            findings.extend(map(_said, examine(doctor, allowed, arm)))
            if args.motion and any(one.verdict == "wrong" for one in findings):
                print("nothing is moved while something is wrong")
            elif args.motion:
                findings.extend(map(_said, move(doctor, robot, args)))
        finally:
            write(args.out, args, findings)
    wrong = sum(one.verdict == "wrong" for one in findings)
    print(f"{len(findings)} checks, {wrong} wrong; report in {args.out}")
    return int(wrong > 0)


def examine(doctor: Any, allowed: limits.Limits, arm: driver.Driver) -> Iterator[Finding]:
    """Yield the findings about what an arm's nodes say; nothing moves."""
    yield from arm_checks.joint_states(
        doctor.joint_messages, arm.names, allowed.low, allowed.high
    )  # fmt: skip
    yield from arm_checks.description(doctor.description, arm.names, allowed)
    for name, arrivals in doctor.images.items():
        yield from arm_checks.camera(name, arrivals)
    for one in arm.controllers:
        if one.is_topic:
            publishers = doctor.publishers(one.topic)
            yield from arm_checks.controller(one.topic, doctor.listeners(one.topic), publishers)
        if one.type == "trajectory":
            values = doctor.parameters(one.topic.rpartition("/")[0], list(arm_checks.WANTED))
            yield from arm_checks.controller_parameters(one.topic, values)
    if arm.states:
        fault = doctor.driver_states.fault()
        yield Finding(
            name="driver states", verdict="wrong" if fault else "works",
            detail=fault or f"all {len(arm.states)}",
            fix="clear it at the arm (pendant, web interface), or mend the driver file",
        )  # fmt: skip
    state = doctor.state
    yield Finding(
        name="safety node", verdict="works" if state == "disabled" else "wrong",
        detail=state or "not heard", fix="start it (vla ros launch arm); clear a latch first",
    )  # fmt: skip


def move(doctor: Any, robot: RobotSpec, args: DoctorArmArgs) -> Iterator[Finding]:
    """Yield the findings about each joint's first motion and the e-stop.

    Raises:
        ValueError: the safety node is too fast or refuses, or the person says no.
    """
    name = "max_velocity_scaling_factor"
    speed = doctor.parameters("safety_node", [name]).get(name)
    if speed is None or speed > SLOW:
        raise ValueError(
            f"the safety node has {name} {speed}, expected at most {SLOW} for first motions; start "
            "it with that"
        )
    ask: Callable[[str], bool] = (lambda _: True) if args.yes else _ask
    if not ask("Is a hand on the hardware e-stop, and nobody in the arm's reach?"):
        raise ValueError("nothing was moved: the hardware e-stop has to be at hand")
    allowed = limits.of_spec(robot)
    doctor.hold_s = ANSWER_S  # the last target is repeated while a person looks
    doctor.enable(True)
    try:
        start = doctor.go(doctor.pose(), MOTION_S)
        for at, joint in enumerate(robot.names):
            before = doctor.pose()
            middle = (allowed.low[at] + allowed.high[at]) / 2
            wanted = STEP * allowed.unit[at] * (1 if before[at] < middle else -1)
            target = start.copy()
            target[at] += wanted
            after = doctor.go(target, MOTION_S)
            finding = arm_checks.motion(joint, wanted, before, after, at, allowed.unit)
            way = "positive" if wanted > 0 else "negative"
            if finding.verdict == "works" and not ask(f"Did {joint} move in its {way} direction?"):
                finding = Finding(
                    name=finding.name, verdict="wrong", detail="the person saw another motion",
                    fix="turn the joint's sign in the driver",
                )  # fmt: skip
            yield finding
            if finding.verdict == "wrong":
                return
            doctor.go(start, MOTION_S)
        yield _estop(doctor, allowed)
    finally:
        doctor.enable(False)


def _estop(doctor: Any, allowed: limits.Limits) -> Finding:
    """Press the e-stop while the first joint moves; return whether the arm rested and latched."""
    start = doctor.pose()
    step = STEP * float(allowed.unit[0])
    away = 3 * step * (1 if start[0] < (allowed.low[0] + allowed.high[0]) / 2 else -1)
    target = start + away * np.eye(len(start))[0]
    end_s = time.monotonic() + MOTION_S
    while abs(doctor.pose()[0] - start[0]) < step and time.monotonic() < end_s:
        doctor.send(target[None])
        time.sleep(0.02)
    moved = abs(doctor.pose()[0] - start[0]) >= step
    doctor.estop()
    doctor.wait(lambda: doctor.state == "latched_fault", "the e-stop", 10.0)
    time.sleep(LEAD_S)
    stood = doctor.pose()
    time.sleep(REST_S)
    drift = float(np.abs((doctor.pose() - stood) / allowed.unit).max())
    doctor.rearm()
    if not moved:
        detail = "the first joint did not move"
        return Finding(name="e-stop in motion", verdict="not checked", detail=detail)
    return Finding(
        name="e-stop in motion", verdict="works" if drift < STEP / 5 else "wrong",
        detail=f"latched; moved by {drift:.4f} in the second after it",
        fix="do not go on: what moves the arm besides the safety node?",
    )  # fmt: skip


def write(out: Path, args: DoctorArmArgs, findings: list[Finding]) -> None:
    """Write the report, with the digest of its content."""
    content = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "operator": args.operator or "not given", "robot": args.robot,
        "driver": driver.file_of(args.driver).read_text() if args.driver else "",
        "findings": [asdict(finding) for finding in findings],
    }  # fmt: skip
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**content, "sha256": digest}, indent=1) + "\n")


def _said(finding: Finding) -> Finding:
    """Print a finding and return it."""
    fix = f"; {finding.fix}" if finding.verdict == "wrong" and finding.fix else ""
    print(f"{MARKS[finding.verdict]:>6}  {finding.name}: {finding.detail}{fix}", flush=True)
    return finding


def _ask(question: str) -> bool:
    """Return whether a person at the terminal says yes."""
    if not sys.stdin.isatty():
        raise ValueError(f"{question} Nobody can answer here; run it in a terminal, or give --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
