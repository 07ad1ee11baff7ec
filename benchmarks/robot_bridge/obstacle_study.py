"""Arms that are held by force: how far the reference goes beyond the arm, and how it starts again.

`python -m benchmarks.robot_bridge.obstacle_study`

One process in simulated time, without ROS: the safety gate at 100 Hz with its default thresholds,
an emulated trajectory controller at 500 Hz, and the robot's MuJoCo model with its motors. A policy
whose plan does not see the arm drives one joint through its range. On the way something holds it: a
stop of that joint, stronger than any motor, or a box in the way of the hand; with `grasp` it is the
stop, and the gripper holds an object, as it does in `e-stop`, where a person stops the arm instead.
Once the gate has latched, what holds the arm vanishes in every second case; then the arm is enabled
again and driven back.

Distances are those of the controller's reference from the measured pose, of the worst joint, in
rad, or a tenth of that in m for a linear joint. The gripper is left out: it may hold something, and
its reference has to stay where it was, or what it holds falls.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.robot_bridge.obstacle_world import CYCLE_S, World
from robot_bridge.launching import package_files
from robot_bridge.motion import limits as joint_limits
from robot_bridge.motion.limits import Limits
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from robot_bridge.sim_arm.trajectory_controller import Trajectory, TrajectoryController
from sim.vec_env import load_robot
from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.utils import arguments

ROBOTS = ("so101", "panda")
SPEEDS = (0.1, 0.5, 1.0)
"""Shares of velocity, acceleration and jerk, as `max_velocity_scaling_factor`."""
Obstacle = Literal["stop", "box", "grasp", "e-stop"]
OBSTACLES: tuple[Obstacle, ...] = ("stop", "box", "grasp", "e-stop")
FURTHEST = 0.1
"""Largest allowed distance of the reference from the arm at rest, `max_tracking_error`."""
MOVED = 1e-3
"""Distance in rad that counts as motion."""
CYCLES = 5
"""Cycles of the controller and of the physics in a tick of the gate."""
POINTS, PERIOD = 16, 50
"""Targets of a chunk, 0.1 s apart, and cycles from chunk to chunk."""
RAMP_S = 0.3
"""Time constant in which the plan reaches its speed."""
SPEED = 0.9
"""Speed of the plan, share of the limit."""
OBJECT = 0.5
"""Opening at which the gripper meets an object, share of its range."""
REST_S, SETTLED_S = 1.0, 0.5
"""Time for which an arm whose gate has latched is watched, and the end of it in which all rests."""
TRIES = 50
"""Start poses that are tried for one from which the hand meets a box."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Hold simulated arms by force."""

    seeds: int = 4
    """Start poses of every joint, speed and obstacle; the first is the home pose."""
    seed: int = 0
    """Seed of the start poses."""

    def __post_init__(self) -> None:
        validate_min(self, seeds=1, seed=0)


class Case(NamedTuple):
    """What is driven, how fast, and what holds it."""

    joint: int
    speed: float
    """Share of the limits."""
    obstacle: Obstacle | None
    """None: nothing holds it."""
    number: int
    """Number of the start pose; with an even one the obstacle vanishes."""
    seed: int = 0


class Outcome(NamedTuple):
    """Measurements of a case. A contact is the e-stop if there is none.

    Forces are shares of what a motor has at most, without the gripper's.
    """

    stage: str
    """Stage that latched, "" if none did."""
    lag: float
    """Largest distance before the contact."""
    peak: float
    """Largest distance from the contact on."""
    rest: float
    """Largest distance once all rests."""
    peak_force: float
    rest_force: float
    found_s: float
    """Time from the contact until the gate stops."""
    stopped_s: float
    """Time from then on until the reference rests."""
    sprung: float
    """How far the arm moves by itself when the obstacle vanishes; NaN if it stays."""
    first: float
    """Distance of the first reference after the arm is enabled again."""
    step: float
    """Largest step of the reference from there on, in units of velocity limit x period."""
    grip: float
    """How far the gripper's reference moves from the contact on, in rad or a tenth of it in m."""


def main() -> int:
    """Run the study; 1 if an arm did not latch, was pressed on at rest, let go, or had a step."""
    args = arguments.read(
        StudyArgs, sys.argv[1:], "python -m benchmarks.robot_bridge.obstacle_study"
    )
    table = Table(title="arms held by force: worst of each")
    for column in (
        "arm, held by, speed", "latched", "lag before", "peak, median / max", "at rest",
        "force at peak / rest", "found s", "then rests s", "springs", "first", "step",
        "gripper",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column.startswith("arm") else "right")
    broken = 0
    for name in ROBOTS:
        rig = Rig(load_robot(name))
        outcomes = [
            (case, outcome)
            for case in track(list(cases(rig.robot, args)), name, transient=True)
            if (outcome := rig.play(case)) is not None
        ]
        broken += sum(not kept(outcome) for _, outcome in outcomes)
        for obstacle in OBSTACLES:
            for speed in SPEEDS:
                row = [
                    o for case, o in outcomes if (case.obstacle, case.speed) == (obstacle, speed)
                ]
                table.add_row(f"{name}, {obstacle}, {speed:g}", *_row(row))
    bars = ["bar", "all", "", "", f"{FURTHEST:g}", "", "", "", "", "", "1", f"{MOVED:g}"]
    table.add_row(*bars)
    Console(highlight=False, width=180).print(table)
    print(f"{broken} cases beyond a bar")
    return int(broken > 0)


def cases(robot: RobotSpec, args: StudyArgs) -> Iterator[Case]:
    """Yield every joint but the gripper with every obstacle, speed and start pose."""
    for joint, channel in enumerate(robot.channels):
        if robot.gripper is None or channel.name != robot.gripper.channel:
            for speed in SPEEDS:
                for obstacle in OBSTACLES:
                    for number in range(args.seeds):
                        yield Case(joint, speed, obstacle, number, args.seed)


def kept(outcome: Outcome) -> bool:
    """Return whether an arm latched, was not pressed on at rest, held on, and had no step."""
    latched = outcome.stage in ("tracking_error", "e-stop")
    rests = outcome.rest <= FURTHEST and outcome.grip <= MOVED
    return latched and rests and outcome.step <= 1.0 + 1e-6


class Rig:
    """Gate, controller and world of a robot, cycle by cycle."""

    def __init__(self, robot: RobotSpec) -> None:
        path = package_files.params() / f"{robot.name}_limits.yaml"
        self.robot, self.allowed = robot, joint_limits.read(path, robot)
        self.world = World(robot)
        self.gripper = robot.names.index(self.allowed.gripper)
        self.observed = np.arange(len(robot.names)) != self.gripper
        self.contact: int | None = None

    def play(self, case: Case) -> Outcome | None:
        """Return the measurements of a case; None if that joint does not move the hand to a box."""
        limits, joint = self.allowed.scaled(case.speed), case.joint
        placed = self._place(case)
        if placed is None:
            return None
        start, meets = placed
        self._begin(Gate(GateConfig(), limits), start)
        closed = start.copy()
        if case.obstacle in ("grasp", "e-stop"):
            closed[self.gripper] = self.allowed.low[self.gripper]
            closing_s = abs(closed - start).max() / limits.velocity[self.gripper]
            self._run(closing_s + 0.5, lambda times_s: np.tile(closed, (len(times_s), 1)))
        end, speed = closed.copy(), SPEED * limits.velocity[joint]
        end[joint] = (self.allowed.high if meets > start[joint] else self.allowed.low)[joint]
        longest_s = abs(end - closed).max() / speed + 2.0
        if case.obstacle == "e-stop":
            further = abs(meets - start[joint])
            self._run(
                longest_s, _plan(closed, end, speed),
                until=lambda: abs(self.world.measured - start)[joint] > further,
            )  # fmt: skip
            self.contact = len(self.references)
            self.gate.estop("asked")
        latched = lambda: self.gate.state == "latched_fault"  # noqa: E731
        self._run(longest_s, _plan(closed, end, speed), until=latched)
        self._run(REST_S)
        vanishes, rested = len(self.references), self.world.measured
        if case.number % 2 == 0:
            self.world.free()
            if case.obstacle in ("grasp", "e-stop"):
                self.world.bound(self.gripper, start[self.gripper], upper=False)
            self._run(REST_S)
        again = len(self.references)
        moved = self._apart(np.array(self.measured[vanishes:]).reshape(-1, len(start)), rested)
        stage = self.gate.stage if latched() else ""
        self.gate.reset()
        self.gate.measure(self.now_s, self.world.measured)
        assert self.gate.enable(self.now_s, True) == ""
        self._run(0.2)
        begin = np.where(self.observed, self.world.measured, closed)
        self._run(0.5, _plan(begin, closed, speed))
        sprung = float(moved.max()) if len(moved) else np.nan
        return self._outcome(stage, vanishes, again, sprung, limits)

    def _outcome(
        self, stage: str, vanishes: int, again: int, sprung: float, limits: Limits
    ) -> Outcome:
        """Return what was recorded; `vanishes` and `again` are cycles, of the arm enabled again."""
        references, forces = np.array(self.references), np.array(self.forces)
        apart = self._apart(references, np.array(self.measured))
        contact = vanishes if self.contact is None else self.contact
        moving = np.abs(np.diff(references[:vanishes], axis=0)).max(1) > 1e-9
        found = next((i for i, s in enumerate(self.states) if s == "stopping"), vanishes)
        settled = slice(vanishes - round(SETTLED_S / CYCLE_S), vanishes)
        steps = np.abs(np.diff(references[again - 1 :], axis=0)) / (limits.velocity * CYCLE_S)
        grips = np.abs(references[contact:] - references[contact])[:, self.gripper].max()
        return Outcome(
            stage=stage,
            lag=float(apart[:contact].max()),
            peak=float(apart[contact:vanishes].max(initial=0.0)),
            rest=float(apart[settled].max()),
            peak_force=float(forces[contact:vanishes].max(initial=0.0)),
            rest_force=float(forces[settled].max()),
            found_s=CYCLE_S * (found - contact),
            stopped_s=CYCLE_S * max(int(np.flatnonzero(moving)[-1]) + 1 - found, 0),
            sprung=sprung,
            first=float(apart[again]),
            step=float(steps.max()),
            grip=float(grips / limits.unit[self.gripper]),
        )

    def _place(self, case: Case) -> tuple[np.ndarray, float] | None:
        """Put arm and obstacle; return the start pose f64 [u], and where the joint meets it."""
        rng = np.random.default_rng((case.seed, case.number, case.joint))
        low, spread = self.allowed.low, self.allowed.high - self.allowed.low
        for _ in range(TRIES):
            start = low + rng.uniform(0.2, 0.8, len(low)) * spread
            if case.number == 0:
                start = np.clip(self.robot.home, low, self.allowed.high)
            if case.obstacle in ("grasp", "e-stop"):
                start[self.gripper] = (low + OBJECT * spread)[self.gripper]
            upper, share = bool(rng.random() < 0.5), rng.uniform(0.05, 0.25)
            start[case.joint] = (low + (share if upper else 1 - share) * spread)[case.joint]
            pose = start.copy()
            pose[case.joint] += rng.uniform(0.25, 0.45) * (spread if upper else -spread)[case.joint]
            meets = float(pose[case.joint])
            self.world.begin(start)
            if case.obstacle in ("grasp", "e-stop"):
                self.world.bound(self.gripper, start[self.gripper], upper=False)
            if case.obstacle in ("stop", "grasp"):
                self.world.stop(case.joint, meets, upper)
            if case.obstacle != "box" or self.world.put_box(pose):
                return start, meets
        return None

    def _begin(self, gate: Gate, start: np.ndarray) -> None:
        self.gate, self.controller, self.cycle = gate, TrajectoryController(start), 0
        self.references: list[np.ndarray] = []
        self.measured: list[np.ndarray] = []
        self.forces: list[float] = []
        self.states: list[str] = []
        self.contact = None
        gate.measure(0.0, start)
        assert gate.enable(0.0, True) == ""

    @property
    def now_s(self) -> float:
        """Time of the present cycle."""
        return self.cycle * CYCLE_S

    def _run(
        self, duration_s: float, plan: Callable[[np.ndarray], np.ndarray] | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Go on for a time; `plan` has the poses f64 [k, u] at times f64 [k] from now."""
        for cycle in range(round(duration_s / CYCLE_S)):
            if until():
                return
            now_s, pose = self.now_s, self.world.measured
            if plan is not None and cycle % PERIOD == 0:
                times_s = 0.1 * np.arange(POINTS)
                positions = plan(CYCLE_S * cycle + times_s)
                self.gate.offer(now_s, "policy", now_s + times_s, positions, 0.0)
            if self.cycle % CYCLES == 0:
                self._tick(now_s, pose)
            reference = self.controller.update(now_s).p
            if self.contact is None and self.world.touches:
                self.contact = self.cycle
            self.references.append(reference)
            self.measured.append(pose)
            self.forces.append(float(self.world.forces[self.observed].max()))
            self.states.append(self.gate.state)
            self.world.advance(reference)
            self.cycle += 1

    def _tick(self, now_s: float, pose: np.ndarray) -> None:
        gate = self.gate
        gate.measure(now_s, pose)
        if gate.tick(now_s) is None:
            return
        p, v, a = gate.trajectory()
        self.controller.receive(
            Trajectory(
                times_s=gate.dt_s * np.arange(len(p)), positions=p, velocities=v, accelerations=a,
                stamp_s=now_s - gate.dt_s,
            )
        )  # fmt: skip

    def _apart(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the distance f64 [n] of poses f64 [n, u], that of the worst joint."""
        distance: np.ndarray = (np.abs(a - b) / self.allowed.unit)[..., self.observed].max(-1)
        return distance


def _plan(start: np.ndarray, end: np.ndarray, speed: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a path f64 [k, u] by time f64 [k] that reaches its speed gradually, and ends."""
    length = max(float(np.abs(end - start).max()), 1e-9)

    def at(times_s: np.ndarray) -> np.ndarray:
        way = speed * (times_s + RAMP_S * np.expm1(-times_s / RAMP_S))
        path: np.ndarray = start + np.minimum(way / length, 1.0)[:, None] * (end - start)
        return path

    return at


def _row(outcomes: Sequence[Outcome]) -> list[str]:
    if not outcomes:
        return ["0 of 0"]
    latched = sum(outcome.stage in ("tracking_error", "e-stop") for outcome in outcomes)
    columns = {name: [getattr(o, name) for o in outcomes] for name in Outcome._fields[1:]}
    most = {name: float(np.fmax.reduce(values)) for name, values in columns.items()}
    return [
        f"{latched} of {len(outcomes)}", f"{most['lag']:.3f}",
        f"{np.median(columns['peak']):.3f} / {most['peak']:.3f}", f"{most['rest']:.4f}",
        f"{most['peak_force']:.2f} / {most['rest_force']:.2f}", f"{most['found_s']:.2f}",
        f"{most['stopped_s']:.2f}", f"{most['sprung']:.4f}", f"{most['first']:.4f}",
        f"{most['step']:.3f}", f"{most['grip']:.4f}",
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
