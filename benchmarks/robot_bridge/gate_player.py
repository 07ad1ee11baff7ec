"""Plays an example against the safety gate as `safety_node` does, without ROS, and checks it.

Every detail follows from a seed: chunks, joint states, how late ticks and messages are. What the
gate decides is played into emulated controllers of 500 Hz and 1 kHz, where one message in twenty
comes a cycle late.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from benchmarks.robot_bridge import controller_replay, gate_inputs, vector_replay
from robot_bridge.launching import package_files
from robot_bridge.motion import limits as joint_limits
from robot_bridge.motion.limits import Limits
from robot_bridge.motion.spline import Knots
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig, Source
from robot_bridge.sensing import convert
from robot_bridge.sensing.joint_states import JointStates
from vla.contracts import registry

STILL = 1e-9
"""Distance from where it ends within which a reference is at rest, rad or m."""
BEYOND = 1e-8
"""Distance in rad or m that a reference may be outside its range: rounding."""
FAR_AHEAD = 10**9
"""Tick that never comes."""
DRAIN_S = 3.0
"""Time in which a stop ends, beyond what the way back to an arm that was held takes."""


class Example(NamedTuple):
    """What an example consists of; the rest follows from its seed."""

    robot: str
    speed: float
    """Share of the limits, as `max_velocity_scaling_factor`."""
    seed: int
    steps: list[tuple[str, int]]
    """Names of what happens, and ticks after it."""


@dataclass
class Tally:
    """Sums and worst values of examples."""

    examples: int = 0
    ticks: int = 0
    messages: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    """Largest share of each limit, how far beyond a position, and others with a unit.

    The way back is that to an arm that did not follow, in rad or a tenth of it in m; no bar.
    """
    stages: Counter[str] = field(default_factory=Counter)
    """Examples in which each stage of the gate acted, and in which each state was reached."""

    def take(self, name: str, value: float, most: float) -> None:
        """Take a share; AssertionError if it is beyond what is allowed."""
        self.worst[name] = max(self.worst.get(name, -np.inf), value)
        assert value <= most, f"{name}: {value}, at most {most}"


@dataclass
class Series:
    """Messages of an arm from one `enable` to its end, f64 [u] each pose."""

    start: np.ndarray
    arrivals_s: list[float] = field(default_factory=list)
    stamps_s: list[float] = field(default_factory=list)
    messages: list[Knots] = field(default_factory=list)
    stop_s: float = np.inf
    """Time from which the limits of a stop hold."""
    over_s: float = np.inf
    """Time from which nothing may move."""


class Wall:
    """Obstacles: one joint may not go beyond a position, unless it begins there."""

    def __init__(self, joint: int, at: float) -> None:
        self.joint, self.wall, self.at = joint, at, at

    def begin(self, pose: np.ndarray) -> None:
        """Start at rest at a pose f64 [u]."""
        self.at = max(self.wall, float(pose[self.joint]))

    def hit(self, way: np.ndarray) -> str:
        """Return what would collide on a way f64 [t, u], "" if nothing."""
        return "a wall" if (way[:, self.joint] > self.at).any() else ""


@functools.cache
def limits_of(robot: str) -> Limits:
    """Return the limits of a robot's file."""
    spec = registry.load("vla.robots", robot).SPEC
    return joint_limits.read(package_files.params() / f"{robot}_limits.yaml", spec)


def play(example: Example, tally: Tally) -> None:
    """Play and check an example; AssertionError if a property does not hold."""
    player = Player(example)
    for event, ticks in example.steps:
        player.act(event)
        for _ in range(ticks):
            player.tick()
    player.end()
    player.check(tally)


class Player:
    """Gate, joint states, arm and clocks of an example."""

    def __init__(self, example: Example) -> None:
        self.rng = rng = np.random.default_rng(example.seed)
        self.limits = limits = limits_of(example.robot).scaled(example.speed)
        wide = {"max_start_deviation": 10.0, "max_tracking_error": 10.0}
        self.config = GateConfig(
            lead_ticks=int(rng.choice([3, 4, 4, 4, 6])), deadman=bool(rng.random() < 0.2),
            monitored=bool(rng.random() < 0.2), speed_scaling_timeout_s=0.15,
            **(wide if rng.random() < 0.3 else {}),
        )  # fmt: skip
        spread = limits.high - limits.low
        self.wall: Wall | None = None
        if rng.random() < 0.2:
            joint = int(rng.integers(len(limits.names)))
            at = (limits.low + rng.uniform(0.3, 1.0) * spread)[joint]
            self.wall = Wall(joint, float(at))
        self.gate = Gate(self.config, limits, self.wall)
        self.states = JointStates(limits.names, self.config.joint_state_timeout_s)
        self.joints = "good"
        self.pose = limits.low + rng.uniform(0.0, 1.0, len(limits.names)) * spread
        self.sent, self.apart = (0.0, self.pose), np.zeros(len(self.pose))
        self.number, self.ready_s, self.ticks = 100, 0.0, 0
        self.ahead_s, self.back = 0.0, 0.0
        self.stops: list[int] = []
        """Ticks that each stop took that had no way back."""
        self.stopping: int | None = None
        self.series: list[Series] = []
        self.plan: tuple[np.ndarray, np.ndarray] | None = None
        self._take(0.0, limits.names, self.pose.tolist())
        self._press()
        if rng.random() < 0.95:
            self._enable()

    @property
    def now_s(self) -> float:
        """Present time, between two ticks."""
        return max(self.number * self.gate.dt_s, self.ready_s)

    # --- what happens -------------------------------------------------------------------------

    def act(self, event: str) -> None:
        """Let something happen."""
        gate, now_s = self.gate, self.now_s
        happens: dict[str, Callable[[], object]] = {
            "policy": lambda: self._chunk("policy"), "teleop": lambda: self._chunk("teleop"),
            "joints": self._change_joints, "push": self._push, "wait": lambda: None,
            "enable": self._enable, "disable": lambda: gate.enable(now_s, False),
            "estop": lambda: gate.estop("asked for"), "reset": gate.reset, "rearm": self._rearm,
            "press": self._press, "release": lambda: gate.press(now_s, False),
            "scale": self._scale, "died": lambda: gate.policy_died("gone"),
            "fail": lambda: gate.fail("asked for"), "clock": self._jump,
        }  # fmt: skip
        happens[event]()

    def _change_joints(self) -> None:
        good = self.rng.random() < 0.4
        self.joints = "good" if good else str(self.rng.choice(gate_inputs.JOINTS))

    def _push(self) -> None:
        """Let the arm be elsewhere than commanded."""
        far = float(self.rng.choice([0.0, 0.02, 0.05, 0.5]))
        self.apart = far * self.rng.uniform(-1, 1, len(self.pose)) * self.limits.unit

    def _scale(self) -> None:
        odd = float(self.rng.choice([np.nan, np.inf, -1.0, 1.5]))
        share = float(self.rng.choice([0.0, 1.0, self.rng.random()]))
        self.gate.scale_speed(self.now_s, share if self.rng.random() < 0.9 else odd)

    def _jump(self) -> None:
        """Let the clock of stamps jump."""
        self.ahead_s += float(self.rng.choice([-2.0, -0.2, 0.2, 2.0]))

    def _rearm(self) -> None:
        """Reset and enable, with good joint states."""
        self.joints = "good"
        self._sense()
        self.gate.reset()
        self._enable()

    def _press(self) -> None:
        self.gate.press(self.now_s, True)

    def _enable(self) -> None:
        """Enable; what the arm is sent first is where it is, and nothing if it merely sags."""
        gate, before = self.gate, self.gate.series
        gate.enable(self.now_s, True)
        if gate.series == before:
            return
        assert gate.motion is not None
        assert gate.measured is not None
        tolerance = self.config.rest_position_tolerance * self.limits.unit
        apart = np.abs(gate.motion.p - gate.measured)
        # A gripper may begin where it was told to be, as it may hold something.
        near = (apart <= tolerance + STILL) | gate.tracking.holds
        assert near.all(), f"begins {apart} from where it is"
        if self.series and self.series[-1].messages:
            held = self.series[-1].messages[-1].positions[-1]
            if (np.abs(held - gate.measured) <= 0.99 * tolerance).all():
                step = np.abs(held - gate.motion.p).max()
                assert step <= STILL, f"an arm that merely sags begins with a step of {step}"
        self.apart = self.pose - gate.motion.p
        self.series.append(Series(gate.motion.p))

    def _chunk(self, source: Source) -> None:
        """Send a chunk, as `safety_node` takes it."""
        gate, now_s = self.gate, self.now_s
        base = self.pose if gate.measured is None else gate.measured
        before = None if self.plan is None else (self.plan[0] - now_s, self.plan[1])
        chunk = gate_inputs.chunk(self.rng, self.limits, base, before)
        try:
            times_s, positions = convert.trajectory(
                chunk.names, chunk.positions, chunk.times_s, gate.limits.names, source
            )
        except ValueError as error:
            gate.reject(str(error))
            return
        times_s = now_s - chunk.age_s + times_s
        gate.offer(now_s, source, times_s, positions, chunk.age_s)
        self.plan = times_s, positions

    def _sense(self) -> None:
        """Measure the arm, and send what becomes of that."""
        gate, now_s = self.gate, self.now_s
        if gate.motion is not None and self.joints != "held":
            rests = gate.state in ("disabled", "latched_fault")
            self.pose = (gate.motion.p if rests else gate.path[2]) + self.apart
        if self.joints != "frozen":
            self.sent = now_s, self.pose
        aged_s, names = now_s - self.sent[0], self.limits.names
        for message in gate_inputs.joint_states(self.rng, self.joints, names, self.sent[1]):
            self._take(message.age_s + aged_s, message.names, message.positions)

    def _take(self, age_s: float, names: Sequence[str], positions: list[float]) -> None:
        """Take joint states, as `safety_node` does."""
        try:
            self.states.take(self.now_s, age_s, names, positions)
        except ValueError:
            return
        self.gate.measure(self.states.times_s.copy(), self.states.pose.copy())

    # --- ticks --------------------------------------------------------------------------------

    def tick(self, in_time: bool = False) -> None:
        """Tick when it is due, or later; as `_tick_until_over` of `safety_node`."""
        rng, gate = self.rng, self.gate
        self._sense()
        dt_s, odd = gate.dt_s, 1.0 if in_time else rng.random()
        due_s = (self.number + 1) * dt_s
        now_s = max(due_s, self.ready_s) + 1e-4
        if odd < 0.1:  # it is woken late
            now_s += float(rng.choice([0.003, 0.008, 0.025, 0.3]))
        missed = int((now_s - due_s) / dt_s)
        self.number += 1 + missed
        due_s += missed * dt_s
        gate.clocks(now_s, now_s + self.ahead_s, 0.2 if rng.random() < 0.02 else 0.0)
        rests = gate.state in ("disabled", "latched_fault")
        command = gate.tick(now_s, missed)
        assert (command is None) == (rests or gate.motion is None)
        self.ready_s = now_s + (float(rng.uniform(0.0, 0.03)) if 0.1 < odd < 0.2 else 5e-4)
        self.ticks += 1
        self.back = max(self.back, float((self._back / self.limits.unit).max()))
        self._count_stop(missed)
        if command is None:
            return
        if self.ready_s > due_s + max(self.config.lead_ticks - 2.5, 0.5) * dt_s:
            gate.brake_instead()
        series = self.series[-1]
        arrival_s = self.ready_s + float(rng.uniform(0.0, 9e-4))
        series.arrivals_s.append(max([arrival_s, *series.arrivals_s[-1:]]))
        series.stamps_s.append((self.number - 1) * dt_s)
        series.messages.append(gate.trajectory())
        if gate.latches and gate.state in ("stopping", "latched_fault"):
            series.stop_s = min(series.stop_s, now_s)
        if gate.state in ("disabled", "latched_fault"):
            series.over_s = self.number * dt_s + gate.lead_s

    def _count_stop(self, missed: int) -> None:
        """Note how long a stop took; in ticks that were missed just now it may have ended."""
        if self.gate.state == "stopping":
            self.stopping = self.number if self.stopping is None else self.stopping
            if self.gate.way_back.pending:
                self.stopping = FAR_AHEAD
        elif self.stopping is not None:
            self.stops.append(self.number - missed - self.stopping)
            self.stopping = None

    def end(self) -> None:
        """End the node; sometimes only after its stop has ended."""
        draws = self.rng.random()
        if draws < 0.1:
            self.gate.estop("at the end")
        # A way back takes long if it is slow, and may be followed by another.
        if draws < 0.3 and self.gate.state == "stopping" and not self.gate.way_back.pending:
            until_s = self.now_s + DRAIN_S
            while self.gate.state == "stopping":
                self.tick(in_time=True)
                assert self.now_s < until_s, f"still stopping: {self.gate.why}"
        if self.series and self.series[-1].messages:
            last = self.series[-1]
            last.over_s = min(last.over_s, self.number * self.gate.dt_s + self._rests_s)

    @property
    def _back(self) -> np.ndarray:
        """Way f64 [u] back to where an arm was that did not follow, 0 if there is none."""
        back, motion = self.gate.way_back.target, self.gate.motion
        none = np.zeros(len(self.pose))
        return none if back is None or motion is None else np.abs(back - motion.p)

    @property
    def _rests_s(self) -> float:
        """Time in which an arm rests after the last tick."""
        return self.gate.lead_s + self.gate.stop_s

    # --- what has to hold ---------------------------------------------------------------------

    def check(self, tally: Tally) -> None:
        """Check the references of all series; AssertionError if one breaks a limit."""
        tally.examples += 1
        tally.ticks += self.ticks
        tally.take("way back, rad", self.back, np.inf)
        longest_s = max([0, *self.stops]) * self.gate.dt_s
        tally.take("stop beyond its time, s", longest_s - self.gate.stop_s, 2 * self.gate.dt_s)
        tally.stages.update(stage for stage in self.gate.counts)
        tally.stages[self.gate.state] += 1
        for series, following in zip_longest(self.series, self.series[1:]):
            if series.messages:
                tally.messages += len(series.messages)
                end_s = series.arrivals_s[-1] + self._rests_s + 0.1
                if following is not None and following.arrivals_s:
                    end_s = min(end_s, following.arrivals_s[0])
                for rate_hz in controller_replay.RATES_HZ:
                    self._check(series, rate_hz, end_s, tally)

    def _check(self, series: Series, rate_hz: float, end_s: float, tally: Tally) -> None:
        late = self.rng.random(len(series.messages)) < controller_replay.LATE_SHARE
        arrivals_s = np.maximum.accumulate(np.array(series.arrivals_s) + late / rate_hz)
        begin_s = arrivals_s[0] + self.rng.random() / rate_hz
        times_s = begin_s + np.arange(max(int((end_s - begin_s) * rate_hz), 5)) / rate_hz
        stamps_s = np.array(series.stamps_s)
        dt_s = self.gate.dt_s
        path = vector_replay.reference(arrivals_s, stamps_s, series.messages, dt_s, times_s)
        assert np.isfinite(path).all()
        shares = controller_replay.shares(path, rate_hz, self.limits, series.stop_s - begin_s)
        tally.take("position", shares.pop("position"), BEYOND)
        for name, share in shares.items():
            tally.take(name, share, 1 + controller_replay.ROUNDING)
        if self.wall is not None:
            most = max(self.wall.wall, series.start[self.wall.joint])
            tally.take("wall", float(path[:, self.wall.joint].max()) - most, BEYOND)
        moving = np.flatnonzero((np.abs(path - path[-1]) > STILL).any(1))
        rest_s = float(times_s[moving[-1]]) if len(moving) else begin_s
        tally.take("motion after rest, s", rest_s - series.over_s, dt_s)
