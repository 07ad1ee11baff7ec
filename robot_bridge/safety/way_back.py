"""Where an arm that did not follow goes after it has braked. This module does not import ROS."""

from collections import deque
from dataclasses import replace

import numpy as np

from robot_bridge.motion.limits import Limits
from robot_bridge.safety.gate_config import GateConfig

RECENT_S = 3.0
"""Time in s whose commands bound the way back: the arm was there, whatever a sensor says now."""
ARRIVED = 2e-3
"""Distance in rad from the end of the way at which it is reached."""
APART = 0.01
"""Distance in rad of a measured pose that is worth a way."""
BEYOND = 1.5
"""Distance in rad from all commands of late at which an obstacle may have pushed a joint."""
JUMP = 0.1
"""Change of a measured position in rad that no joint makes, beside twice its speed."""
SPEED = 1.0
"""Largest speed of a way in rad/s, from which it is stopped within a few degrees."""
SETTLE_S = 0.15
"""Time in s at rest after which the arm has followed, and its measured pose counts."""
WAYS, APART_AGAIN = 3, 1.5
"""Most ways per stop, since a joint may be held elsewhere once others have gone back; and by which
factor a way may leave the arm farther apart for another to follow."""


class WayBack:
    """Brings the command to where the arm is held, so that it does not press on, nor jump later.

    Each joint goes to its measured position if commands of late have been near it. A joint whose
    measured position jumped has a wrong sensor and stays, unless commands have just been there. A
    gripper, which may hold something, stays as well. A way ends if a joint is not measured at its
    end any more: then its sensor has another sign or scale, or what held it has let go.
    """

    def __init__(self, config: GateConfig, limits: Limits, dt_s: float) -> None:
        """Know the tolerances; `dt_s` is a tick."""
        self.limits, self.unit = limits, limits.unit
        self.tolerance = config.rest_position_tolerance * self.unit
        self.near = config.max_tracking_error * self.unit
        self.seen: np.ndarray | None = None
        self.seen_s: np.ndarray = np.zeros(len(limits.names))
        self.jumped: np.ndarray = np.zeros(len(limits.names), np.int64)
        """Ticks for which each joint's sensor is still doubted."""
        self.stays = np.array([name == limits.gripper for name in limits.names])
        self.ticks, self.settles = round(RECENT_S / dt_s), round(SETTLE_S / dt_s)
        self.waits = 0
        """Ticks at rest until the arm has settled and the next way is looked for."""
        self.recent: deque[np.ndarray] = deque(maxlen=self.ticks)
        self.target: np.ndarray | None = None
        """End f64 [u] of the present way; None without one."""
        self.left, self.before = 0, np.inf
        """Number of ways that are left, and how far apart the arm was before the last one, rad."""
        self.rested: np.ndarray = np.full(len(limits.names), np.nan)
        """Measured pose f64 [u] in which the arm came to rest; NaN if it is not known."""
        self.slow = replace(limits, velocity=np.minimum(limits.velocity, SPEED * self.unit))
        """Limits of a way."""

    def begin(self, pose: np.ndarray) -> None:
        """Begin at rest at a pose f64 [u]."""
        self.recent.clear()
        self.recent.append(pose)
        self.cancel()

    def request(self) -> None:
        """Ask for ways back once the arm has braked."""
        self.left, self.before, self.waits = WAYS, np.inf, self.settles

    def cancel(self) -> None:
        """Go no further."""
        self.target, self.left = None, 0

    @property
    def pending(self) -> bool:
        """Whether a way is to be gone, or to be looked for."""
        return self.target is not None or self.left > 0

    def see(self, measured: np.ndarray | None, at_s: np.ndarray) -> None:
        """Take the measured pose f64 [u] of a tick, and when each joint was measured."""
        if self.seen is not None and measured is not None:
            most = JUMP * self.unit + 2 * self.limits.velocity * np.clip(at_s - self.seen_s, 0, 1)
            jumps = np.abs(measured - self.seen) > most
            self.jumped = np.where(jumps, self.ticks, np.maximum(self.jumped - 1, 0))
        self.seen, self.seen_s = measured, at_s

    def look(self, pose: np.ndarray) -> None:
        """Find the next way of an arm at rest at a command f64 [u]."""
        measured = self.seen
        if self.target is not None or not self.left or measured is None:
            return
        self.waits -= 1
        if self.waits > 0:
            return
        apart = float((np.abs(pose - measured) / self.unit)[~self.stays].sum())
        if apart > APART_AGAIN * self.before:
            self.left = 0
            return
        self.left, self.before = self.left - 1, apart
        passed = np.array(self.recent)
        end = np.clip(measured, self.limits.low, self.limits.high)
        beyond = np.abs(end - np.clip(end, passed.min(axis=0), passed.max(axis=0)))
        true = beyond <= np.where(self.jumped > 0, self.near, BEYOND * self.unit)
        true &= np.abs(measured - end) <= self.near
        goes = true & ~self.stays & (np.abs(end - pose) > APART * self.unit)
        if goes.any():
            self.target, self.begun = np.where(goes, end, pose), pose
            self.waits = self.settles
        else:
            self.left = 0

    def go(self, pose: np.ndarray) -> np.ndarray | None:
        """Return the end f64 [u] of the present way for a command at a pose f64 [u], None without.

        The way ends once the command is there, or if a joint that goes is measured elsewhere.
        """
        if self.target is not None and self.seen is not None:
            goes = self.target != self.begun
            elsewhere = np.abs(self.seen - self.target) > self.near
            arrived = (np.abs(pose - self.target) < ARRIVED * self.unit).all()
            if arrived or (goes & elsewhere).any():
                self.target = None
        return self.target

    def passed(self, pose: np.ndarray) -> None:
        """Remember a command f64 [u] that was no part of a way."""
        if self.target is None:
            self.recent.append(pose)

    def rest(self, known: bool) -> None:
        """Remember in which measured pose the arm came to rest, if that is known."""
        unknown = np.full(len(self.stays), np.nan)
        self.rested = unknown if self.seen is None or not known else self.seen

    def start(self, pose: np.ndarray | None, measured: np.ndarray) -> np.ndarray:
        """Return the pose f64 [u] at which the arm is enabled.

        That is where it is measured. But a joint that merely hangs below its last command, and a
        gripper that has not moved since it came to rest with what it holds, begin at that command,
        so nothing moves.
        """
        start = measured
        if pose is not None:
            hangs = np.abs(pose - measured) <= self.tolerance
            holds = self.stays & (np.abs(measured - self.rested) <= self.tolerance)
            start = np.where(hangs | holds, pose, measured)
        return np.clip(start, self.limits.low, self.limits.high)
