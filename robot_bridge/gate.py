"""The safety gate: what stands between whoever decides and the controller; no ROS, no clock here.

A chunk passes these stages in order, and is refused as a whole by the first that finds fault:
names, finite, fresh, position, start-jump. What is left of it is followed tick by tick inside the
limits of velocity, acceleration and jerk (`robot_bridge.brake`), as far as the collision stage lets
it: before a contact the arm comes to rest, until what the plan wants by then is free.
Whatever goes wrong ends in standing still: a refusal holds the arm; silence, death, a blind or
stuck arm, a clock that jumps and an e-stop bring it to rest and latch: then no command leaves until
somebody clears the latch and enables it anew. Every intervention has a stage and a reason.
A monitor may have the policy's chunks followed more slowly, or not at all, on the same path
(`robot_bridge.pace`): only what is gone after changes, never the limits. A person's are not slowed.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from robot_bridge import brake
from robot_bridge.brake import Motion
from robot_bridge.limits import Limits
from robot_bridge.pace import Pace
from robot_bridge.plan import Plan

State = Literal["disarmed", "holding", "following", "stopping", "latched"]
"""disarmed: no command leaves; the arm is where it was left.
holding: armed, at rest or coming to rest, waiting for a chunk.
following: armed, going after a chunk.
stopping: coming to rest inside the limits; then disarmed or latched.
latched: no command leaves until the latch is cleared and the arm enabled."""
Source = Literal["policy", "teleop"]
STAGES = (
    "names", "finite", "fresh", "position", "velocity", "acceleration", "jerk", "start-jump",
    "collision", "silence", "gone", "blind", "stuck", "clock", "deadman", "pace", "e-stop",
)  # fmt: skip
"""Everything that acts, in order."""

LEASE_S = 0.2
"""In which a policy whose process died is noticed."""
DRIFT = 0.2
"""Share by which a simulation's clock may run more slowly, or faster, than time."""


@runtime_checkable
class Obstacles(Protocol):
    """What the arm could touch; `robot_bridge.collision` has it from the arm's model."""

    def begin(self, pose: np.ndarray) -> None:
        """Know that the arm stands at a pose f64 [u]: what touches there may, but no deeper."""

    def hit(self, way: np.ndarray) -> str:
        """Return what would collide on a way f64 [t, u] from where the arm is, "" if nothing.

        A way on which nothing collides is taken.
        """


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """When the gate acts."""

    rate_hz: float
    """Ticks per second."""
    stale_s: float
    """Oldest observation whose chunk is taken."""
    silent_s: float
    """Longest silence of whoever is followed."""
    blind_s: float
    """Longest silence of the joints' measurements."""
    jump: float
    """Largest distance of a chunk from the measured pose, in the unit of the joint."""
    stuck: float
    """Largest distance of the command from the measured pose; beyond it the arm does not follow."""
    sag: float
    """Largest distance of an arm at rest from the command that it holds."""
    deadman: bool = False
    """Whether somebody has to hold a switch for the arm to move."""
    deadman_s: float = 0.25
    """Longest silence of that switch."""
    monitored: bool = False
    """Whether the policy's chunks are followed only while a monitor says how fast."""
    pace_s: float = 1.0
    """Longest silence of that monitor."""


@dataclass
class Gate:
    """One arm's gate. Every time is in seconds of the monotonic clock, given by the caller."""

    config: GateConfig
    limits: Limits
    obstacles: Obstacles | None = None
    state: State = "disarmed"
    motion: Motion | None = None
    plan: Plan | None = None
    source: Source | None = None
    latches: bool = False
    """Whether what stops now latches."""
    series: int = 0
    """How often the arm was enabled: a series of commands begins at rest."""
    begun: bool = False
    """Whether a command of this series has left: the first one is where the arm stands."""
    blocked: bool = False
    """Whether the arm brakes before what its plan would have collided with."""
    stage: str = ""
    why: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    measured: np.ndarray | None = None
    measured_s: float = -np.inf
    heard_s: float = -np.inf
    """When a chunk was last taken."""
    pressed_s: float = -np.inf
    skew: tuple[float, float] | None = None
    """When the clocks were compared, and by how much that of stamps was ahead, drift followed."""

    def __post_init__(self) -> None:
        """Know a tick, and how long stopping takes.

        Raises:
            ValueError: a joint takes too long to stop.
        """
        self.dt_s = 1.0 / self.config.rate_hz
        self.stop_s = brake.stop_s(self.limits, self.dt_s)
        self.pacing = Pace(monitored=self.config.monitored, silent_s=self.config.pace_s)

    # --- what comes in ------------------------------------------------------------------------

    def measure(self, now_s: float, pose: np.ndarray) -> None:
        """Take a measured pose f64 [u]; one that is not finite counts as none."""
        if np.isfinite(pose).all():
            self.measured, self.measured_s = pose, now_s
        else:
            self._note("finite", "a measured pose is not finite")

    def press(self, now_s: float, held: bool) -> None:
        """Take a message of the deadman switch."""
        self.pressed_s = now_s if held else -np.inf

    def pace(self, now_s: float, share: float) -> None:
        """Follow the policy at a share of its time, in [0, 1]; at 0 the arm comes to rest.

        Any other number counts as none: silence then says what is done.
        """
        if not 0 <= share <= 1:  # NaN is not
            self._note("pace", f"a pace of {share} is none from 0 to 1")
            return
        if share < self.pacing.asked:
            self._note("pace", f"the monitor asks for {share:g} of the plan's speed")
        self.pacing.ask(now_s, share)

    def clocks(self, now_s: float, stamps_s: float) -> None:
        """Compare the monotonic clock with the one that stamps messages.

        A stamping clock that jumps, or stands still as a paused simulation does, makes every age
        wrong: the arm comes to rest and latches.
        """
        skew_s = stamps_s - now_s
        if self.skew is None or self.state in ("disarmed", "latched"):
            self.skew = (now_s, skew_s)
            return
        before_s, expected_s = self.skew
        drift_s = DRIFT * (now_s - before_s)
        expected_s = min(max(skew_s, expected_s - drift_s), expected_s + drift_s)
        self.skew = (now_s, expected_s)
        if abs(skew_s - expected_s) > self.config.silent_s:
            self.skew = (now_s, skew_s)
            self._stop("clock", "the clock of stamps jumped or stood still", latches=True)

    def offer(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray, age_s: float
    ) -> bool:
        """Take a chunk, or refuse it and hold the arm; return whether it was taken.

        Args:
            now_s: When it came.
            source: Whose it is; while a person's is fresh, the policy's are not even looked at.
            times_s: f64 [k], increasing, when each target applies.
            positions: f64 [k, u], targets.
            age_s: Of the observation it was decided on.
        """
        if self.state not in ("holding", "following"):
            return False
        if source == "policy" and self.source == "teleop" and self._fresh(now_s):
            return False
        found = self._judge(now_s, source, times_s, positions, age_s)
        if found is not None:
            self._refuse(*found)
            return False
        inside = self._inside(positions)
        if (inside != positions).any():
            self._note(
                "position", f"targets of {self._worst(inside != positions)} cut to its range"
            )
        self.plan, self.pacing.behind_s = self._joined(now_s, source, times_s, positions)
        self.source, self.heard_s = source, now_s
        self.state = "following"
        return True

    def reject(self, why: str) -> None:
        """Hold the arm for a chunk that cannot be read: other joints, other sizes, other times."""
        if self.state in ("holding", "following"):
            self._refuse("names", why)

    def gone(self, why: str) -> None:
        """Stop and latch where the process that is followed has died."""
        if self.state == "following" and self.source == "policy":
            self._stop("gone", why, latches=True)

    def enable(self, now_s: float, on: bool) -> str:
        """Arm from the measured pose, or come to rest and disarm; return why not, "" if done."""
        if not on:
            if self.state in ("holding", "following"):
                self._stop("", "", latches=False)
            return ""
        if self.state == "stopping":
            return "still coming to rest; try again"
        if self.state == "latched":
            return f"latched by {self.stage}: {self.why}; clear it with reset_estop first"
        if self.measured is None or now_s - self.measured_s > self.config.blind_s:
            return (
                f"no joint states for {self.config.blind_s} s; see whether the arm publishes them"
            )
        outside = (self.measured < self.limits.low) | (self.measured > self.limits.high)
        beyond = np.maximum(self.limits.low - self.measured, self.measured - self.limits.high)
        if (beyond > self.config.sag).any():  # the first command would be a step of that size
            return f"{self._worst(outside)} is outside its range; move it inside by hand"
        if self.state == "disarmed":
            self.motion, self.plan, self.source = brake.at_rest(self._start()), None, None
            self.heard_s, self.state = -np.inf, "holding"
            self.series, self.begun = self.series + 1, False
            if self.obstacles is not None:
                self.obstacles.begin(self.motion.p)
        return ""

    def _start(self) -> np.ndarray:
        """Return the pose f64 [u] from which the arm is commanded.

        The measured one; or the last command, if the arm sags below it as it does while its
        controller holds it: from there nothing moves at all.
        """
        assert self.measured is not None
        pose = self.measured
        if self.motion is not None and (np.abs(self.motion.p - pose) <= self.config.sag).all():
            pose = self.motion.p
        return np.clip(pose, self.limits.low, self.limits.high)

    def estop(self, why: str) -> None:
        """Come to rest and latch, whatever the state."""
        if self.state in ("disarmed", "latched"):
            self._note("e-stop", why)
            self.state = "latched"
        else:
            self._stop("e-stop", why, latches=True)

    def reset(self) -> str:
        """Clear the latch; return why not, "" if done."""
        if self.state == "stopping":
            return "still coming to rest"
        if self.state == "latched":
            self.state, self.skew = "disarmed", None
        return ""

    # --- what goes out ------------------------------------------------------------------------

    def tick(self, now_s: float) -> np.ndarray | None:
        """Return the position f64 [u] to command now; None where no command leaves."""
        self._keep_pace(now_s)
        if self.motion is None or self.state in ("disarmed", "latched"):
            return None
        if self.state != "stopping":
            self._watch(now_s)
        wanted = brake.braking(self.motion, self.limits, self.dt_s)
        following = self.begun and self.state == "following" and self.plan is not None
        # Tried again at rest, not before: following and braking by turns would shake the arm.
        self.blocked = self.blocked and not self._rests()
        following = following and not self.blocked
        if following and self.share > 0:
            wanted = self._wanted(now_s)
        moved, way = brake.move(self.motion, wanted, self.limits, self.dt_s)
        if following and self.obstacles is not None:  # who brakes keeps to a way that was judged
            hit = self.obstacles.hit(np.concatenate([self.motion.p[None], way]))
            if hit:
                self._note("collision", hit)
                self.blocked = True
                a = brake.braking(self.motion, self.limits, self.dt_s)
                moved = brake.advance(self.motion, a, self.dt_s)
        self.motion, self.begun = moved, True
        if self.state == "stopping" and self._rests():
            self.state = "latched" if self.latches else "disarmed"
        return moved.p

    @property
    def share(self) -> float:
        """Share of its time at which the plan is followed; a person's is followed as it is."""
        return 1.0 if self.source == "teleop" else self.pacing.share

    @property
    def _behind_s(self) -> float:
        return 0.0 if self.source == "teleop" else self.pacing.behind_s

    def _keep_pace(self, now_s: float) -> None:
        spoke = self.pacing.wanted(self.pacing.ticked_s) > 0
        self.pacing.tick(now_s)
        if spoke and self.config.monitored and self.pacing.silent(now_s):
            self._note("pace", f"the monitor was silent for {self.config.pace_s} s")

    def _wanted(self, now_s: float) -> np.ndarray:
        """Return the acceleration f64 [u] that goes after the plan.

        Below full speed the velocity is cut as well: else what a new decision begins ahead of the
        arm would be caught up with at full speed.
        """
        assert self.plan is not None
        assert self.motion is not None
        slowed, limits = self.share < 1, self.limits
        if slowed:
            limits = replace(limits, velocity=self.share * limits.velocity)
        target, speed = self.plan.at(now_s - self._behind_s)
        wanted, cut = brake.following(self.motion, target, self.share * speed, limits, self.dt_s)
        self.counts.update(name for name in cut if not (slowed and name == "velocity"))
        return wanted

    def _inside(self, positions: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(positions, self.limits.low), self.limits.high)

    def _joined(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray
    ) -> tuple[Plan, float]:
        """Return the plan to follow with a chunk, and how far it is behind its time."""
        plan = Plan(times_s=times_s, positions=self._inside(positions))
        if source == "teleop" or self.source != "policy":
            return plan, 0.0
        return self.pacing.joined(now_s, self.plan, plan)

    def _watch(self, now_s: float) -> None:
        """Stop or hold where somebody or something has fallen silent, or the arm is stuck."""
        config = self.config
        if self.measured is None or now_s - self.measured_s > config.blind_s:
            self._stop("blind", f"no joint states for {config.blind_s} s", latches=True)
            return
        assert self.motion is not None
        apart = np.abs(self.motion.p - self.measured)
        if (apart > config.stuck).any():
            joint = self._worst(apart > config.stuck)
            self._stop("stuck", f"{joint} is {apart.max():.2f} from its command", latches=True)
        elif config.deadman and now_s - self.pressed_s > config.deadman_s:
            if self.state == "following":
                self._refuse("deadman", "the deadman switch is not held")
        elif self.state == "following" and not self._fresh(now_s):
            self._stop("silence", f"no chunk for {config.silent_s} s", latches=True)

    def _judge(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray, age_s: float
    ) -> tuple[str, str] | None:
        """Return stage and reason of a refusal, None where a chunk may be followed."""
        config = self.config
        if not (np.isfinite(positions).all() and np.isfinite(times_s).all()):
            return "finite", "a chunk has targets or times that are not finite"
        if not -config.stale_s <= age_s <= config.stale_s:
            return "fresh", f"a chunk of an observation {age_s:.2f} s old, at most {config.stale_s}"
        if config.deadman and now_s - self.pressed_s > config.deadman_s:
            return "deadman", "the deadman switch is not held"
        spread = self.limits.high - self.limits.low
        far = (positions < self.limits.low - spread) | (positions > self.limits.high + spread)
        if far.any():
            return "position", f"a target of {self._worst(far)} is far outside its range"
        if self.measured is None or now_s - self.measured_s > config.blind_s:
            return "blind", f"no joint states for {config.blind_s} s"
        plan, behind_s = self._joined(now_s, source, times_s, positions)
        if not behind_s:
            plan = Plan(times_s=times_s, positions=positions)
        target, _ = plan.at(now_s - behind_s)
        apart = np.abs(target - self.measured)
        if (apart > config.jump).any():
            joint = self._worst(apart > config.jump)
            return "start-jump", f"a chunk begins {apart.max():.2f} from where {joint} is"
        return None

    def _fresh(self, now_s: float) -> bool:
        return now_s - self.heard_s <= self.config.silent_s

    def _rests(self) -> bool:
        assert self.motion is not None
        return bool((np.abs(self.motion.v) + np.abs(self.motion.a) < 1e-12).all())

    def _stop(self, stage: str, why: str, *, latches: bool) -> None:
        if stage:
            self._note(stage, why)
        self.latches = latches or (self.state == "stopping" and self.latches)
        self.plan, self.source, self.state = None, None, "stopping"

    def _refuse(self, stage: str, why: str) -> None:
        """Hold the arm: come to rest and wait for another chunk."""
        self._note(stage, why)
        self.plan, self.source, self.state = None, None, "holding"

    def _note(self, stage: str, why: str) -> None:
        self.stage, self.why = stage, why
        self.counts[stage] += 1

    def _worst(self, wrong: np.ndarray) -> str:
        """Return the name of a joint that is marked in bool [..., u]."""
        return self.limits.names[int(np.argmax(wrong.reshape(-1, len(self.limits.names)).any(0)))]
