"""The safety gate between the source of action chunks and the controller.

A chunk passes these stages in order; the first that finds a fault refuses the whole chunk: names,
finite, fresh, position, start_deviation. The gate follows an accepted chunk tick by tick inside the
limits of velocity, acceleration and jerk (`robot_bridge.motion.braking`), as far as the collision
stage allows: before a contact the arm comes to rest until the plan's way is free again.

Every fault ends at rest: a refusal holds the arm; silence, a dead policy, missing joint states, a
joint that does not follow, a clock that jumps and the e-stop latch as well, and no command leaves
until an operator clears the latch and enables the arm. A monitor may slow the policy's chunks on
the same path (`robot_bridge.motion.speed_scaling`), not a person's.

The gate decides `lead_ticks` ahead. A controller that gets `trajectory` knows the way to a
standstill from there: if nothing more comes, the arm brakes by itself.

This module does not import ROS; the caller passes the time.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from robot_bridge.motion import braking, spline
from robot_bridge.motion.braking import Motion
from robot_bridge.motion.limits import Limits
from robot_bridge.motion.plan import Plan
from robot_bridge.motion.speed_scaling import SpeedScaling
from robot_bridge.safety import plan_following
from robot_bridge.safety.chunk_fault import chunk_fault
from robot_bridge.safety.clock_skew import ClockSkew
from robot_bridge.safety.gate_config import GateConfig, Source, State
from robot_bridge.safety.stages import Obstacles, ToolSpeedBound, Unbounded
from robot_bridge.safety.tracking import Tracking
from robot_bridge.safety.way_back import WayBack
from robot_bridge.sensing import joint_states

DOUBTS = ("driver_state", "joint_state_timeout", "clock")  # the controller may be elsewhere


@dataclass
class Gate:
    """Gate of one arm. The caller passes every time in seconds of the monotonic clock."""

    config: GateConfig
    limits: Limits
    obstacles: Obstacles | None = None
    tool_speed: ToolSpeedBound = field(default_factory=Unbounded)
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
    heard_s: float = -np.inf  # the last accepted chunk
    pressed_s: float = -np.inf
    idle_s: float = 0.0

    def __post_init__(self) -> None:
        """Derive the tick and the longest stopping time.

        Raises:
            ValueError: a joint takes too long to stop.
        """
        self.dt_s = 1.0 / self.config.rate_hz
        self.lead_s = self.config.lead_ticks * self.dt_s
        self.stop_s, self.skew = braking.stop_s(self.limits, self.dt_s), ClockSkew()
        self.unit, self.stop_limits = self.limits.unit, self.limits.of_stop
        self.tracking = Tracking(self.config, self.limits, self.dt_s)
        self.way_back = WayBack(self.config, self.limits, self.dt_s)
        self.measured_s: np.ndarray = np.full(len(self.limits.names), -np.inf)
        """Time at which each joint was measured, f64 [u]."""
        self.tail_limits = self.limits
        """Limits by which `tail` comes to rest."""
        self.tail: np.ndarray = np.zeros((0, len(self.limits.names)))
        self._previous: tuple[Motion, Limits] | None = None
        self.decided: list[tuple[np.ndarray, bool]] = []
        """Positions f64 [u] of missed ticks and of the last one; whether by the limits of stops."""
        self.path: deque[np.ndarray] = deque(maxlen=self.config.lead_ticks + 3)
        self.scaling = SpeedScaling(
            monitored=self.config.monitored, timeout_s=self.config.speed_scaling_timeout_s
        )

    # --- what comes in ------------------------------------------------------------------------

    def measure(self, at_s: float | np.ndarray, pose: np.ndarray) -> None:
        """Take a pose f64 [u] that was measured at one time, or at that f64 [u] of each joint.

        A joint that is not finite was not measured.
        """
        finite = np.isfinite(pose)
        if (~finite & np.isfinite(at_s)).any():
            self._note("finite", "a measured pose is not finite")
        self.measured = pose if self.measured is None else np.where(finite, pose, self.measured)
        self.measured_s = np.where(finite, at_s, self.measured_s)

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
        wrong, so the arm comes to rest and latches. A process that was suspended between the two
        readings, for `read_s`, saw no jump.
        """
        if read_s > 0.1 * self.config.command_timeout_s:
            return
        if self.state in ("disabled", "latched_fault"):
            self.skew.begin(now_s, stamps_s)
        elif self.skew.jumped(now_s, stamps_s, self.config.command_timeout_s):
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
        if source == "policy" and self.source == "teleop":
            self._stop_if_silent(now_s)  # the policy must not take over by itself
            return False
        fault = self._find_fault(now_s, source, times_s, positions, age_s)
        if fault is not None:
            self._refuse(*fault)
            return False
        if ((inside := np.clip(positions, self.limits.low, self.limits.high)) != positions).any():
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
        """Stop and latch if an armed gate's policy has died, unless a person leads."""
        if self.state in ("holding", "tracking") and self.source != "teleop":
            self._stop("policy_died", why, latches=True)

    def stop(self, stage: str, why: str) -> None:
        """Come to rest and latch if the arm is armed; a way back ends."""
        if self.state in ("holding", "tracking"):
            self._stop(stage, why, latches=True)
        self.way_back.cancel()

    def enable(self, now_s: float, on: bool) -> str:
        """Enable, or come to rest and disable; return why not, "" if done."""
        if not on:
            if self.state in ("holding", "tracking"):
                self._stop("", "", latches=False)
            self.way_back.cancel()
            return ""
        if self.state == "stopping":
            return "still coming to rest; try again"
        if self.state == "latched_fault":
            return f"latched by {self.stage}: {self.why}; clear it with reset_estop first"
        if unseen := self._old(now_s):
            return f"{unseen}; see whether the arm publishes it, and whether the clocks agree"
        assert self.measured is not None
        beyond = np.maximum(self.limits.low - self.measured, self.measured - self.limits.high)
        # The first command would be a step of that size.
        if (beyond > self.config.rest_position_tolerance * self.unit).any():
            return f"{self._worst(beyond > 0)} is outside its range; move it inside by hand"
        if self.state == "disabled":
            pose = None if self.motion is None else self.motion.p
            start = self.way_back.start(pose, self.measured)
            self._begin(start)
            self.plan, self.source = None, None
            self.heard_s, self.state, self.idle_s = -np.inf, "holding", now_s
            self.series, self.commanded = self.series + 1, False
            if self.obstacles is not None:
                self.obstacles.begin(start)
        return ""

    def _begin(self, pose: np.ndarray) -> None:
        """Rest at a pose f64 [u], and have done so for long."""
        self.motion, self.tail_limits = braking.at_rest(pose), self.limits
        self.tail = self.motion.p[None]
        self.way_back.begin(pose)
        self.tracking.begin()
        self.path.extend([self.motion.p] * (self.config.lead_ticks + 3))

    def estop(self, why: str, stage: str = "e-stop") -> None:
        """Come to rest and latch, whatever the state."""
        if self.state in ("disabled", "latched_fault"):
            self._note(stage, why)
            self.state = "latched_fault"
        else:
            self._stop(stage, why, latches=True)

    def fail(self, why: str) -> None:
        """Come to rest and latch because a part of the node failed."""
        self.estop(why, "internal_error")

    def reset(self) -> str:
        """Clear the latch; return why not, "" if done."""
        if self.state == "stopping":
            return "still coming to rest"
        if self.state == "latched_fault":
            self.state = "disabled"
        return ""

    # --- what goes out ------------------------------------------------------------------------

    def tick(self, now_s: float, missed: int = 0) -> np.ndarray | None:
        """Return the position f64 [u] of `lead_ticks` from now; None if no command leaves.

        Args:
            now_s: Present time.
            missed: Number of ticks that were left out before this one: in them the arm went on
                along the way to a standstill that the last trajectory ends with.
        """
        self._advance_scaling(now_s)
        self.decided = []
        if self.motion is None or self.state in ("disabled", "latched_fault"):
            return None
        self.way_back.see(self.measured, self.measured_s)
        for _ in range(min(missed, len(self.tail) + len(self.path))):
            self._advance(self._braked(self.motion, self.tail_limits), None, self.tail_limits)
        if self.state != "stopping":
            self._check(now_s)
        elif self._old(now_s) or self._let_go(now_s):
            self.way_back.cancel()
        elif self._is_at_rest():
            self.way_back.look(self.motion.p)
        back = self.way_back.go(self.motion.p)
        hard = self.latches and self.state == "stopping" and back is None
        limits = self.stop_limits if hard else self.limits
        wanted = braking.braking(self.motion, limits, self.dt_s)
        if back is not None:
            still, slow = np.zeros(len(back)), self.way_back.slow
            slow = self.tool_speed.slowed(slow, self.motion, back, still)
            wanted, _ = braking.follow(self.motion, back, still, slow, self.dt_s)
        # Tried again only at rest: tracking and braking in turn would shake the arm.
        self.blocked = self.blocked and not self._is_at_rest()
        tracks = self.commanded and self.state == "tracking" and not self.blocked
        if tracks and self.share > 0:
            wanted = self._follow_plan(now_s + self.lead_s)
        moved, way = braking.move(self.motion, wanted, limits, self.dt_s)
        # The last way is checked; every other is to be, as harder braking leads elsewhere.
        if tracks or back is not None or limits is not self.tail_limits:
            moved, way, limits = self._checked(moved, way, limits)
        self._advance(moved, way, limits)
        self.commanded = True
        if self.state == "stopping" and not self.way_back.pending and self._is_at_rest():
            self.way_back.rest(known=not self._old(now_s) and self.stage not in DOUBTS)
            self.state = "latched_fault" if self.latches else "disabled"
        return moved.p

    def _checked(
        self, moved: Motion, way: np.ndarray, limits: Limits
    ) -> tuple[Motion, np.ndarray, Limits]:
        """Return motion, way to rest and limits of a tick: braking's, if that way is refused."""
        assert self.motion is not None
        whole = np.concatenate([self.motion.p[None], way])
        hit = self.obstacles.hit(whole) if self.obstacles is not None else ""
        if hit:
            if self.state != "stopping":
                self._note("collision", hit)
            self.blocked = True
            self.way_back.cancel()
        elif self.state == "stopping" or not self.tool_speed.is_exceeded(whole):
            return moved, way, limits
        limits = self.tail_limits
        moved = self._braked(self.motion, limits)
        return moved, braking.way_to_rest(moved, limits, self.dt_s), limits

    def brake_instead(self) -> None:
        """Replace the last tick's motion by braking: it is too late for the controller to know."""
        assert self._previous is not None
        self.path.pop()
        self.decided.pop()
        self.path.appendleft(self.path[0])  # it is older than what a trajectory begins with
        (before, limits), self._previous = self._previous, None
        self._advance(self._braked(before, limits), None, limits)

    def trajectory(self) -> spline.Knots:
        """Return the points from the tick before now on to a standstill, one per tick.

        The first `lead_ticks` are final; the next trajectory may change all others.
        """
        end = self.tail[-1:]
        return spline.knots(
            np.concatenate([*np.array(self.path)[:, None], self.tail[1:], end, end]), self.dt_s
        )

    def _braked(self, motion: Motion, limits: Limits) -> Motion:
        """Return the motion a tick later, braking."""
        return braking.advance(motion, braking.braking(motion, limits, self.dt_s), self.dt_s)

    def _advance(self, motion: Motion, way: np.ndarray | None, limits: Limits) -> None:
        """Go on to the motion of the next tick; `way` leads from there to rest, None if braking."""
        if self.motion is not None:
            self._previous = self.motion, self.tail_limits
        self.motion, self.tail_limits = motion, limits
        self.path.append(motion.p)
        self.way_back.passed(motion.p)
        self.decided.append((motion.p, limits is not self.limits))
        self.tail = braking.way_to_rest(motion, limits, self.dt_s) if way is None else way

    @property
    def share(self) -> float:
        """Share of its time at which the plan is followed; a person's is followed as it is."""
        return 1.0 if self.source == "teleop" else self.scaling.share

    def _advance_scaling(self, now_s: float) -> None:
        was_moving = self.scaling.target_share(self.scaling.ticked_s) > 0
        self.scaling.tick(now_s)
        if was_moving and self.config.monitored and self.scaling.timed_out(now_s):
            limit_s = self.config.speed_scaling_timeout_s
            self._note("speed_scaling", f"the monitor was silent for {limit_s} s")

    def _follow_plan(self, now_s: float) -> np.ndarray:
        """Return the acceleration f64 [u] that follows the plan."""
        assert self.plan is not None
        assert self.motion is not None
        at_s = now_s - (0.0 if self.source == "teleop" else self.scaling.behind_s)
        wanted, stages = plan_following.follow(
            self.plan, at_s, self.share, self.motion, self.limits, self.tool_speed, self.dt_s
        )
        self.counts.update(stages)
        return wanted

    def _join(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray
    ) -> tuple[Plan, float]:
        """Return the plan to follow with a new chunk, and how far in s it is behind its time."""
        plan = Plan(
            times_s=times_s, positions=np.clip(positions, self.limits.low, self.limits.high)
        )
        if source == "teleop" or self.source != "policy":
            return plan, 0.0
        return self.scaling.join(now_s, self.plan, plan)

    def _check(self, now_s: float) -> None:
        """Stop or hold if a source is silent or a joint does not follow its command."""
        config = self.config
        if unseen := self._old(now_s):
            self._stop("joint_state_timeout", unseen, latches=True)
            return
        assert self.measured is not None
        before, present = self.path[1], self.path[2]  # of the last tick
        if late := self.tracking.late(now_s, before, present, self.measured):
            self._stop("tracking_error", late, latches=True)
            self.way_back.request()
        elif self.state == "tracking":
            self.idle_s = now_s
            if self._let_go(now_s):
                self._refuse("deadman", "the deadman switch is not held")
            else:
                self._stop_if_silent(now_s)
        elif 0 < config.idle_timeout_s < now_s - self.idle_s:  # since there was a plan
            self._stop("idle", f"nothing to follow for {config.idle_timeout_s} s", latches=False)

    def _find_fault(
        self, now_s: float, source: Source, times_s: np.ndarray, positions: np.ndarray, age_s: float
    ) -> tuple[str, str] | None:
        """Return stage and reason of a refusal, None if the chunk may be followed."""
        config = self.config
        if fault := chunk_fault(self.limits, config.max_chunk_age_s, times_s, positions, age_s):
            return fault
        if self._let_go(now_s):
            return "deadman", "the deadman switch is not held"
        if unseen := self._old(now_s):
            return "joint_state_timeout", unseen
        assert self.measured is not None
        plan, behind_s = self._join(now_s, source, times_s, positions)
        if not behind_s:
            plan = Plan(times_s=times_s, positions=positions)
        target, _ = plan.at(now_s - behind_s)
        apart = np.abs(target - self.measured)
        far = (apart > config.max_start_deviation * self.unit) & ~self.tracking.holds
        if far.any():
            joint = self._worst(far)
            return "start_deviation", f"a chunk begins {apart.max():.2f} from where {joint} is"
        return None

    def _old(self, now_s: float) -> str:
        limit_s = self.config.joint_state_timeout_s
        return joint_states.missing(self.limits.names, now_s - self.measured_s, limit_s)

    def _let_go(self, now_s: float) -> bool:
        return self.config.deadman and now_s - self.pressed_s > self.config.deadman_timeout_s

    def _is_at_rest(self) -> bool:
        assert self.motion is not None
        return bool((np.abs(self.motion.v) + np.abs(self.motion.a) < 1e-12).all())

    def _stop_if_silent(self, now_s: float) -> None:
        limit_s = self.config.command_timeout_s
        if now_s - self.heard_s > limit_s:
            why = f"no chunk for {limit_s} s from {self.source}"
            self._stop("command_timeout", why, latches=True)

    def _stop(self, stage: str, why: str, *, latches: bool) -> None:
        if stage:
            self._note(stage, why)
        self.latches = latches or (self.state == "stopping" and self.latches)
        self.plan, self.source, self.state = None, None, "stopping"
        self.way_back.cancel()

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
