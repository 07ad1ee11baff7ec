"""Motion of joints in ticks, braking, and the proof that braking stays inside the limits.

A commanded motion is a series of positions, one per tick. Its velocity, acceleration and jerk are
the differences a controller sees: v' = v + a' dt, p' = p + v' dt. The gate advances only to a
motion from which braking, tick by tick, keeps every limit. So at every tick there is a proven way
to stop; this invariant makes the limits hold for any chunk and any timing. This module does not
import ROS, and its only time is the tick.
"""

from typing import NamedTuple

import numpy as np

from robot_bridge.motion.limits import Limits

SLACK = 1e-9
"""Share of a limit by which rounding may exceed it."""
LONGEST_S = 3.0
"""Longest time in s to a standstill: the proof of a longer one would exceed a tick."""
PULL, STIFF, QUICK = 12.0, 30.0, 60.0
"""Gains in 1/s of position, velocity and acceleration errors: with these a step of 0.02 to 0.9 rad
overshoots by 0.1 % at most, and a path at 1 rad/s is followed 10 ms late."""
CAUTION = 0.4
"""Share of acceleration and jerk for approaching a target; the rest is for corrections."""
SHARES = np.array([1.0, 0.75, 0.5, 0.25, 0.0])
"""Shares of the wanted acceleration that are tried, in order; the rest is braking."""


class Motion(NamedTuple):
    """Commanded motion of joints: f64 [..., u] each."""

    p: np.ndarray
    v: np.ndarray
    """Velocity: difference to the position before, per tick."""
    a: np.ndarray
    """Acceleration: difference to the velocity before, per tick."""


def at_rest(pose: np.ndarray) -> Motion:
    """Return the motion of joints at rest at a pose f64 [u]."""
    return Motion(np.array(pose, np.float64), np.zeros(len(pose)), np.zeros(len(pose)))


def advance(motion: Motion, a: np.ndarray, dt_s: float) -> Motion:
    """Return the motion a tick later, with acceleration a f64 [..., u]."""
    v = motion.v + a * dt_s
    return Motion(motion.p + v * dt_s, v, a)


def braking(motion: Motion, limits: Limits, dt_s: float) -> np.ndarray:
    """Return the acceleration f64 [..., u] of the next tick that brings joints to rest.

    In units of one tick of jerk: braking with x, x - 1, ... 1 removes the velocity x (x + 1) / 2,
    so a velocity v needs x = sqrt(1/4 + 2 v) - 1/2. Below 1 that would pass through zero: there the
    velocity is removed at once, if jerk allows.
    """
    step = np.minimum(limits.jerk * dt_s, limits.acceleration)
    x = np.sqrt(0.25 + 2 * np.abs(motion.v) / (step * dt_s)) - 0.5
    wanted = -np.sign(motion.v) * np.minimum(x * step, limits.acceleration)
    at_once = -motion.v / dt_s
    wanted = np.where((x < 1) & (np.abs(at_once - motion.a) <= step), at_once, wanted)
    return np.minimum(np.maximum(wanted, motion.a - step), motion.a + step)


def can_stop(motion: Motion, limits: Limits, dt_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which joints, bool [..., u], keep every limit until they rest, and their way there.

    The way is f64 [t, ..., u], positions tick by tick from the motion's own on; it is complete for
    the joints that keep the limits.
    """
    low, high = limits.low - SLACK, limits.high + SLACK
    fastest = (1 + SLACK) * limits.velocity
    strongest = (1 + SLACK) * limits.acceleration
    inside = np.ones(motion.p.shape, np.bool_)
    still, way = False, []
    for _ in range(round(LONGEST_S / dt_s)):
        p, v, a = motion
        way.append(p)
        inside &= (p >= low) & (p <= high) & (np.abs(v) <= fastest) & (np.abs(a) <= strongest)
        still = bool(((np.abs(v) + np.abs(a) < 1e-12) | ~inside).all())
        if still:
            break
        motion = advance(motion, braking(motion, limits, dt_s), dt_s)
    if not still:
        inside &= np.abs(motion.v) + np.abs(motion.a) < 1e-12
    return inside, np.array(way)


def way_to_rest(motion: Motion, limits: Limits, dt_s: float) -> np.ndarray:
    """Return the positions f64 [t, u] of braking, tick by tick from the motion's own on."""
    way = [motion.p]
    while (np.abs(motion.v) + np.abs(motion.a) >= 1e-12).any() and len(way) * dt_s <= LONGEST_S:
        motion = advance(motion, braking(motion, limits, dt_s), dt_s)
        way.append(motion.p)
    return np.array(way)


def stop_s(limits: Limits, dt_s: float) -> float:
    """Return the longest time in seconds that braking takes from any motion the gate allows.

    That is from the highest velocity at which the acceleration is still at its limit.

    Raises:
        ValueError: it is longer than `LONGEST_S`.
    """
    rise = limits.acceleration**2 / (2 * limits.jerk) + limits.acceleration * dt_s
    a = np.where(rise < limits.velocity, limits.acceleration, 0.0)
    v = np.where(a > 0, limits.velocity - rise, limits.velocity)
    motion, ticks = Motion(np.zeros_like(v), v, a), 0
    while (np.abs(motion.v) + np.abs(motion.a) >= 1e-12).any():
        motion = advance(motion, braking(motion, limits, dt_s), dt_s)
        ticks += 1
        if ticks * dt_s > LONGEST_S:
            slow = limits.names[int(np.argmax(limits.velocity / limits.acceleration))]
            raise ValueError(
                f"joint {slow!r} takes more than {LONGEST_S} s to stop; allow it more acceleration "
                "and jerk, or less velocity"
            )
    return ticks * dt_s


def follow(
    motion: Motion, target: np.ndarray, speed: np.ndarray, limits: Limits, dt_s: float
) -> tuple[np.ndarray, list[str]]:
    """Return the acceleration f64 [u] that follows a moving target, and which limits are active.

    The target has position and velocity (`speed`) f64 [u].
    """
    step = limits.jerk * dt_s
    wanted_v = _unlimited_velocity(motion, target, speed, limits)
    v = np.clip(wanted_v, -limits.velocity, limits.velocity)
    wanted_a = STIFF * (v - motion.v)
    a = np.clip(wanted_a, -limits.acceleration, limits.acceleration)
    wanted = motion.a + QUICK * dt_s * (a - motion.a)
    limited = np.minimum(np.maximum(wanted, motion.a - step), motion.a + step)
    pairs = {"velocity": (v, wanted_v), "acceleration": (a, wanted_a), "jerk": (limited, wanted)}
    return limited, [name for name, (got, want) in pairs.items() if (got != want).any()]


def wanted_velocity(
    motion: Motion, target: np.ndarray, speed: np.ndarray, limits: Limits
) -> np.ndarray:
    """Return the velocity f64 [u] at which `follow` aims."""
    v = _unlimited_velocity(motion, target, speed, limits)
    return np.clip(v, -limits.velocity, limits.velocity)


def _unlimited_velocity(
    motion: Motion, target: np.ndarray, speed: np.ndarray, limits: Limits
) -> np.ndarray:
    apart = target - motion.p
    largest = np.minimum(stoppable_speed(np.abs(apart), limits), PULL * np.abs(apart))
    v: np.ndarray = speed + np.sign(apart) * largest
    return v


def stoppable_speed(distance: np.ndarray, limits: Limits) -> np.ndarray:
    """Return the velocity f64 [u] from which joints come to rest within a distance f64 [u].

    With acceleration A and jerk J, starting without acceleration, the distance is v^2 / 2A + v A /
    2J if A is reached, else v^(3/2) / J^(1/2).
    """
    a, j = CAUTION * limits.acceleration, CAUTION * limits.jerk
    short = np.cbrt(distance**2 * j)
    long = np.sqrt(a**4 / (4 * j**2) + 2 * a * distance) - a**2 / (2 * j)
    return np.where(distance <= a**3 / j**2, short, long)


def move(
    motion: Motion, wanted: np.ndarray, limits: Limits, dt_s: float
) -> tuple[Motion, np.ndarray]:
    """Return the motion a tick later, and its way to a standstill, f64 [t, u] as of `can_stop`.

    Each joint takes the largest share of the wanted acceleration f64 [u], which is within jerk of
    the last one, that leaves it a way to stop; at share 0 it brakes, on the way that was proven a
    tick ago. The joints have to be able to stop from the present motion.
    """
    brake = braking(motion, limits, dt_s)
    moved = advance(motion, wanted, dt_s)
    good, way = can_stop(moved, limits, dt_s)
    if good.all():
        return moved, way
    share = SHARES[:, None]
    tried = advance(motion, brake + share * (wanted - brake), dt_s)
    good, way = can_stop(tried, limits, dt_s)
    good[-1] = True  # braking
    first = np.argmax(good, axis=0)
    a = np.take_along_axis(tried.a, first[None], 0)[0]
    return advance(motion, a, dt_s), np.take_along_axis(way, first[None, None], 1)[:, 0]
