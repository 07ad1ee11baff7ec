"""The safety gate between the source of action chunks and the controller.

A chunk passes these stages in order; the first that finds a fault refuses the whole chunk: names,
finite, fresh, position, start_deviation. The gate follows an accepted chunk tick by tick inside the
limits of velocity, acceleration and jerk (`robot_bridge.motion.braking`), as far as the collision
stage allows: before a contact the arm comes to rest until the plan's way is free again.

Every fault ends at rest. A refusal holds the arm. Silence, a dead policy, missing joint states, a
joint that does not follow, a clock that jumps and the e-stop bring the arm to rest and latch: no
command leaves until an operator clears the latch and enables the arm. Every intervention has a
stage and a reason. A monitor may slow or pause the policy's chunks on the same path
(`robot_bridge.motion.speed_scaling`); that changes the target, never the limits. Chunks of a person
are not slowed.

This module does not import ROS; the caller passes the time.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from robot_bridge.launching.node_settings import ranged
from robot_bridge.motion import braking
from robot_bridge.motion.braking import Motion
from robot_bridge.motion.limits import Limits
from robot_bridge.motion.plan import Plan
from robot_bridge.motion.speed_scaling import SpeedScaling

State = Literal["disabled", "holding", "tracking", "stopping", "latched_fault"]
"""disabled: no command leaves; the arm is where it was left.
holding: enabled, at rest or coming to rest, waiting for a chunk.
tracking: enabled, following a chunk.
stopping: coming to rest inside the limits; then disabled or latched_fault.
latched_fault: no command leaves until the latch is cleared and the arm enabled."""
Source = Literal["policy", "teleop"]
STAGES = (
    "names", "finite", "fresh", "position", "velocity", "acceleration", "jerk", "start_deviation",
    "collision", "command_timeout", "policy_died", "joint_state_timeout", "tracking_error",
    "clock", "deadman", "speed_scaling", "e-stop",
)  # fmt: skip
"""All stages, in order."""

LEASE_S = 0.2
"""Time in s in which the death of the policy's process is noticed."""
DRIFT = 0.2
"""Share by which a simulation's clock may run slower or faster than real time."""


@runtime_checkable
class Obstacles(Protocol):
    """Checks ways for collisions; `robot_bridge.safety.collision` does so by the arm's model."""

    def begin(self, pose: np.ndarray) -> None:
        """Start at rest at a pose f64 [u]; what touches there may touch, but no deeper."""

    def hit(self, way: np.ndarray) -> str:
        """Return what would collide on a way f64 [t, u] from the arm's pose, "" if nothing.

        A way without collision counts as taken.
        """


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Thresholds and timeouts of the gate; parameters of `safety_node`."""

    rate_hz: float = ranged(100.0, 20.0, 1000.0)
    """Commands per second."""
    max_chunk_age_s: float = ranged(0.5, 0.01, 10.0)
    """Largest age in s of the observation behind an accepted chunk."""
    command_timeout_s: float = ranged(0.3, 0.02, 10.0)
    """Silence in s of the policy or device after which the arm stops and latches."""
    joint_state_timeout_s: float = ranged(0.2, 0.01, 10.0)
    """Silence in s of the joint states after which the arm stops and latches."""
    max_start_deviation: float = ranged(0.6, 0.001, 10.0)
    """Largest distance of a chunk from the measured pose, rad or m."""
    max_tracking_error: float = ranged(0.6, 0.001, 10.0)
    """Largest distance of the command from the measured pose, rad or m."""
    rest_position_tolerance: float = ranged(0.05, 0.0, 0.2)
    """Largest distance of an arm at rest from its command, rad or m."""
    deadman: bool = False
    """Whether the arm moves only while topic `deadman` is true."""
    deadman_timeout_s: float = ranged(0.25, 0.02, 5.0)
    """Silence in s of that topic that counts as letting go."""
    monitored: bool = False
    """Whether a policy is followed only while `speed_scaling` is published; a person always is."""
    speed_scaling_timeout_s: float = ranged(1.0, 0.05, 10.0)
    """Silence in s of that topic after which a monitored arm stands still; another continues."""


@dataclass
class Gate:
    """Gate of one arm. The caller passes every time in seconds of the monotonic clock."""

    config: GateConfig
    limits: Limits
    obstacles: Obstacles | None = None
    state: State = "disabled"
    motion: Motion | None = None
    plan: Plan | None = None
    source: Source | None = None
    latches: bool = False
    """Whether the present stop latches."""
    series: int = 0
    """Number of times the arm was enabled; each series of commands begins at rest."""
    commanded: bool = False
    """Whether this series has sent a command; its first one is the pose of the arm."""
    blocked: bool = False
    """Whether the arm brakes because its plan would collide."""
    stage: str = ""
    why: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    measured: np.ndarray | None = None
    measured_s: float = -np.inf
    heard_s: float = -np.inf
    """Time of the last accepted chunk."""
    pressed_s: float = -np.inf
    skew: tuple[float, float] | None = None
    """Time of the last comparison of clocks, and lead in s of the stamping clock without drift."""

    def __post_init__(self) -> None:
        """Derive the tick and the longest stopping time.

        Raises:
            ValueError: a joint takes too long to stop.
        """
        self.dt_s = 1.0 / self.config.rate_hz
        self.stop_s = braking.stop_s(self.limits, self.dt_s)
        self.scaling = SpeedScaling(
            monitored=self.config.monitored, timeout_s=self.config.speed_scaling_timeout_s
        )

    # --- what comes in ------------------------------------------------------------------------

    def measure(self, now_s: float, pose: np.ndarray) -> None:
        """Take a measured pose f64 [u]; a pose that is not finite counts as none."""
        if np.isfinite(pose).all():
            self.measured, self.measured_s = pose, now_s
        else:
            self._note("finite", "a measured pose is not finite")

    def press(self, now_s: float, held: bool) -> None:
        """Take a message of the deadman switch."""
        self.pressed_s = now_s if held else -np.inf

    def scale_speed(self, now_s: float, share: float) -> None:
        """Follow the policy at a share of its time, in [0, 1]; at 0 the arm comes to rest.

        Any other number counts as no message.
        """
        if not 0 <= share <= 1:  # NaN is not
            self._note("speed_scaling", f"got a speed scaling of {share}, expected 0 to 1")
            return
        if share < self.scaling.requested:
            self._note("speed_scaling", f"the monitor asks for {share:g} of the plan's speed")
        self.scaling.request(now_s, share)

    def clocks(self, now_s: float, stamps_s: float, read_s: float = 0.0) -> None:
        """Compare the monotonic clock with the one that stamps messages.

        A stamping clock that jumps or stands still (as in a paused simulation) makes every age
        wrong, so the arm comes to rest and latches.

        Args:
            now_s: Time by the monotonic clock.
            stamps_s: Time by the stamping clock.
            read_s: Time in s between the two readings. A process that was suspended between
                them saw no clock jump: such a pair is not compared.
        """
        if read_s > 0.1 * self.config.command_timeout_s:
            return
        skew_s = stamps_s - now_s
        if self.skew is None or self.state in ("disabled", "latched_fault"):
            self.skew = (now_s, skew_s)
            return
        before_s, expected_s = self.skew
        drift_s = DRIFT * (now_s - before_s)
        expected_s = min(max(skew_s, expected_s - drift_s), expected_s + drift_s)
        self.skew = (now_s, expected_s)
        if abs(skew_s - expected_s) > self.config.command_timeout_s:
            self.skew = (now_s, skew_s)
            self._stop("clock", "the clock of stamps jumped or stood still", latches=True)

    def offer(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray, age_s: float
    ) -> bool:
        """Take a chunk, or refuse it and hold the arm; return whether it was taken.

        Args:
            now_s: Arrival time.
            source: Its sender; while a person's chunks are recent, the policy's are ignored.
            times_s: f64 [k], increasing, time of each target.
            positions: f64 [k, u], targets.
            age_s: Age of its observation.
        """
        if self.state not in ("holding", "tracking"):
            return False
        if source == "policy" and self.source == "teleop" and self._is_recent(now_s):
            return False
        fault = self._find_fault(now_s, source, times_s, positions, age_s)
        if fault is not None:
            self._refuse(*fault)
            return False
        inside = self._inside(positions)
        if (inside != positions).any():
            self._note(
                "position", f"targets of {self._worst(inside != positions)} cut to its range"
            )
        self.plan, self.scaling.behind_s = self._join(now_s, source, times_s, positions)
        self.source, self.heard_s = source, now_s
        self.state = "tracking"
        return True

    def reject(self, why: str) -> None:
        """Hold the arm because a chunk is malformed: wrong joints, sizes or times."""
        if self.state in ("holding", "tracking"):
            self._refuse("names", why)

    def policy_died(self, why: str) -> None:
        """Stop and latch if the process that is followed has died."""
        if self.state == "tracking" and self.source == "policy":
            self._stop("policy_died", why, latches=True)

    def enable(self, now_s: float, on: bool) -> str:
        """Enable at the measured pose, or come to rest and disable; return why not, "" if done."""
        if not on:
            if self.state in ("holding", "tracking"):
                self._stop("", "", latches=False)
            return ""
        if self.state == "stopping":
            return "still coming to rest; try again"
        if self.state == "latched_fault":
            return f"latched by {self.stage}: {self.why}; clear it with reset_estop first"
        if self.measured is None or now_s - self.measured_s > self.config.joint_state_timeout_s:
            return (
                f"no joint states for {self.config.joint_state_timeout_s} s; see whether the arm "
                "publishes them"
            )
        outside = (self.measured < self.limits.low) | (self.measured > self.limits.high)
        beyond = np.maximum(self.limits.low - self.measured, self.measured - self.limits.high)
        # The first command would be a step of that size.
        if (beyond > self.config.rest_position_tolerance).any():
            return f"{self._worst(outside)} is outside its range; move it inside by hand"
        if self.state == "disabled":
            self.motion, self.plan, self.source = braking.at_rest(self._start()), None, None
            self.heard_s, self.state = -np.inf, "holding"
            self.series, self.commanded = self.series + 1, False
            if self.obstacles is not None:
                self.obstacles.begin(self.motion.p)
        return ""

    def _start(self) -> np.ndarray:
        """Return the pose f64 [u] of the first command.

        That is the measured pose, or the last command where the arm merely sags below it: then
        nothing moves.
        """
        assert self.measured is not None
        pose, tolerance = self.measured, self.config.rest_position_tolerance
        if self.motion is not None and (np.abs(self.motion.p - pose) <= tolerance).all():
            pose = self.motion.p
        return np.clip(pose, self.limits.low, self.limits.high)

    def estop(self, why: str) -> None:
        """Come to rest and latch, whatever the state."""
        if self.state in ("disabled", "latched_fault"):
            self._note("e-stop", why)
            self.state = "latched_fault"
        else:
            self._stop("e-stop", why, latches=True)

    def reset(self) -> str:
        """Clear the latch; return why not, "" if done."""
        if self.state == "stopping":
            return "still coming to rest"
        if self.state == "latched_fault":
            self.state, self.skew = "disabled", None
        return ""

    # --- what goes out ------------------------------------------------------------------------

    def tick(self, now_s: float) -> np.ndarray | None:
        """Return the position f64 [u] to command now; None if no command leaves."""
        self._advance_scaling(now_s)
        if self.motion is None or self.state in ("disabled", "latched_fault"):
            return None
        if self.state != "stopping":
            self._check(now_s)
        wanted = braking.braking(self.motion, self.limits, self.dt_s)
        tracks = self.commanded and self.state == "tracking" and self.plan is not None
        # Tried again only at rest: tracking and braking in turn would shake the arm.
        self.blocked = self.blocked and not self._is_at_rest()
        tracks = tracks and not self.blocked
        if tracks and self.share > 0:
            wanted = self._follow_plan(now_s)
        moved, way = braking.move(self.motion, wanted, self.limits, self.dt_s)
        if tracks and self.obstacles is not None:  # braking keeps to a way that was checked
            hit = self.obstacles.hit(np.concatenate([self.motion.p[None], way]))
            if hit:
                self._note("collision", hit)
                self.blocked = True
                a = braking.braking(self.motion, self.limits, self.dt_s)
                moved = braking.advance(self.motion, a, self.dt_s)
        self.motion, self.commanded = moved, True
        if self.state == "stopping" and self._is_at_rest():
            self.state = "latched_fault" if self.latches else "disabled"
        return moved.p

    @property
    def share(self) -> float:
        """Share of its time at which the plan is followed; a person's is followed as it is."""
        return 1.0 if self.source == "teleop" else self.scaling.share

    @property
    def _behind_s(self) -> float:
        return 0.0 if self.source == "teleop" else self.scaling.behind_s

    def _advance_scaling(self, now_s: float) -> None:
        was_moving = self.scaling.target_share(self.scaling.ticked_s) > 0
        self.scaling.tick(now_s)
        if was_moving and self.config.monitored and self.scaling.timed_out(now_s):
            limit_s = self.config.speed_scaling_timeout_s
            self._note("speed_scaling", f"the monitor was silent for {limit_s} s")

    def _follow_plan(self, now_s: float) -> np.ndarray:
        """Return the acceleration f64 [u] that follows the plan.

        Below full speed the velocity is limited as well; otherwise the arm would catch up with a
        new decision at full speed.
        """
        assert self.plan is not None
        assert self.motion is not None
        slowed, limits = self.share < 1, self.limits
        if slowed:
            limits = replace(limits, velocity=self.share * limits.velocity)
        target, speed = self.plan.at(now_s - self._behind_s)
        wanted, active = braking.follow(self.motion, target, self.share * speed, limits, self.dt_s)
        self.counts.update(name for name in active if not (slowed and name == "velocity"))
        return wanted

    def _inside(self, positions: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(positions, self.limits.low), self.limits.high)

    def _join(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray
    ) -> tuple[Plan, float]:
        """Return the plan to follow with a new chunk, and how far in s it is behind its time."""
        plan = Plan(times_s=times_s, positions=self._inside(positions))
        if source == "teleop" or self.source != "policy":
            return plan, 0.0
        return self.scaling.join(now_s, self.plan, plan)

    def _check(self, now_s: float) -> None:
        """Stop or hold if a source is silent or a joint does not follow its command."""
        config = self.config
        if self.measured is None or now_s - self.measured_s > config.joint_state_timeout_s:
            self._stop(
                "joint_state_timeout",
                f"no joint states for {config.joint_state_timeout_s} s",
                latches=True,
            )
            return
        assert self.motion is not None
        apart = np.abs(self.motion.p - self.measured)
        if (apart > config.max_tracking_error).any():
            joint = self._worst(apart > config.max_tracking_error)
            self._stop(
                "tracking_error", f"{joint} is {apart.max():.2f} from its command", latches=True
            )
        elif config.deadman and now_s - self.pressed_s > config.deadman_timeout_s:
            if self.state == "tracking":
                self._refuse("deadman", "the deadman switch is not held")
        elif self.state == "tracking" and not self._is_recent(now_s):
            self._stop(
                "command_timeout", f"no chunk for {config.command_timeout_s} s", latches=True
            )

    def _find_fault(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray, age_s: float
    ) -> tuple[str, str] | None:
        """Return stage and reason of a refusal, None if the chunk may be followed."""
        config = self.config
        if not (np.isfinite(positions).all() and np.isfinite(times_s).all()):
            return "finite", "a chunk has targets or times that are not finite"
        if not -config.max_chunk_age_s <= age_s <= config.max_chunk_age_s:
            most_s = config.max_chunk_age_s
            return "fresh", f"a chunk of an observation {age_s:.2f} s old, at most {most_s}"
        if config.deadman and now_s - self.pressed_s > config.deadman_timeout_s:
            return "deadman", "the deadman switch is not held"
        spread = self.limits.high - self.limits.low
        far = (positions < self.limits.low - spread) | (positions > self.limits.high + spread)
        if far.any():
            return "position", f"a target of {self._worst(far)} is far outside its range"
        if self.measured is None or now_s - self.measured_s > config.joint_state_timeout_s:
            return "joint_state_timeout", f"no joint states for {config.joint_state_timeout_s} s"
        plan, behind_s = self._join(now_s, source, times_s, positions)
        if not behind_s:
            plan = Plan(times_s=times_s, positions=positions)
        target, _ = plan.at(now_s - behind_s)
        apart = np.abs(target - self.measured)
        if (apart > config.max_start_deviation).any():
            joint = self._worst(apart > config.max_start_deviation)
            return "start_deviation", f"a chunk begins {apart.max():.2f} from where {joint} is"
        return None

    def _is_recent(self, now_s: float) -> bool:
        return now_s - self.heard_s <= self.config.command_timeout_s

    def _is_at_rest(self) -> bool:
        assert self.motion is not None
        return bool((np.abs(self.motion.v) + np.abs(self.motion.a) < 1e-12).all())

    def _stop(self, stage: str, why: str, *, latches: bool) -> None:
        if stage:
            self._note(stage, why)
        self.latches = latches or (self.state == "stopping" and self.latches)
        self.plan, self.source, self.state = None, None, "stopping"

    def _refuse(self, stage: str, why: str) -> None:
        """Come to rest and wait for another chunk."""
        self._note(stage, why)
        self.plan, self.source, self.state = None, None, "holding"

    def _note(self, stage: str, why: str) -> None:
        self.stage, self.why = stage, why
        self.counts[stage] += 1

    def _worst(self, wrong: np.ndarray) -> str:
        """Return the name of one joint marked in bool [..., u]."""
        return self.limits.names[int(np.argmax(wrong.reshape(-1, len(self.limits.names)).any(0)))]
