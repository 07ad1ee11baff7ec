"""Checks an arm's way to a standstill for collisions with itself, its table and its workspace.

A way is a row of poses, one per tick, joined by straight lines; all of it is checked, lines
included. A distance measured in one pose changes by at most `Clearance.rates` times the motion of
the channels. So every measured pose proves a ball free, with each straight line between two poses
inside it. The known balls are laid over the way first; far from everything, that is the whole cost
of a tick. Where no ball covers the way, poses are measured in order, each as far along as the
previous ones reach. Where the arm is too close for that, the measured poses are so dense that no
distance changes by more than `margin` from one to the next: it is at least `margin` at them (all
poses of the way are among them) and at least half of that between them.

This module does not import ROS and reads no clock.
"""

from collections import deque

import numpy as np

from robot_bridge.safety.clearance import Clearance

MOST = 64
"""Most poses measured in one tick; a way that needs more is refused."""
BALLS = 6
"""Number of the last measured poses in memory."""
ROUNDING_M = 1e-5
"""Tolerance of a distance for rounding."""


class Collision:
    """Checks the ways of one arm, each from the end of the one before."""

    def __init__(self, clearance: Clearance, margin: float) -> None:
        """Check by an arm's distances; nothing may come closer than a margin in metres."""
        self.clearance, self.margin = clearance, margin
        self.floor = np.full(len(clearance.rates), margin)
        self.balls: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=BALLS)

    def begin(self, pose: np.ndarray) -> None:
        """Start at rest at a pose f64 [u]; pairs closer than the margin may stay so."""
        distances = self.clearance.at(pose)
        self.floor = np.minimum(self.margin, distances)
        self.balls.append((pose, distances))

    def hit(self, way: np.ndarray) -> str:
        """Return what would collide on a way f64 [t, u], "" if nothing would.

        The first pose is the arm's, the last one its standstill. A way without collision counts as
        taken: pairs that have come free on it have to stay free.
        """
        least = self._proven(way, lines=True)
        unproven = np.any(least < self.floor, axis=1)
        if unproven.any():
            poses = _between(way, unproven, self.clearance.rates, self.margin)
            measured = self._proven(poses, lines=False)
            hit = self._measure(poses, measured)
            if hit:
                return hit
            least = np.concatenate([least[~unproven], measured])
        if (self.floor < self.margin).any():
            self.floor = np.clip(least.min(0), self.floor, self.margin)
        return ""

    def _proven(self, poses: np.ndarray, *, lines: bool) -> np.ndarray:
        """Return the proven lower bounds f64 [t, p] of the distances in poses f64 [t, u].

        With `lines`, f64 [t - 1, p]: of each straight line between two poses.
        """
        rates = self.clearance.rates.T
        least = np.full((len(poses) - lines, rates.shape[1]), -np.inf)
        for pose, distances in reversed(self.balls):
            bound = distances - np.abs(poses - pose) @ rates
            if lines:
                bound = np.minimum(bound[:-1], bound[1:])
            np.maximum(least, bound, out=least)
            if (least >= self.floor).all():
                break
        return least

    def _measure(self, poses: np.ndarray, least: np.ndarray) -> str:
        """Measure poses f64 [t, u] until all are proven, and raise their bounds `least` f64 [t, p].

        Returns:
            What would collide, "" if nothing.
        """
        rates, enough = self.clearance.rates.T, self.floor - ROUNDING_M
        first = 0
        for _ in range(MOST):
            unproven = (least[first:] < enough).any(1)
            if not unproven.any():
                return ""
            first += int(np.argmax(unproven))
            distances = self.clearance.at(poses[first])
            short = distances - enough
            if (short < 0).any():
                return self.clearance.describe(int(np.argmin(short)))
            self.balls.append((poses[first], distances))
            bound = distances - np.abs(poses[first:] - poses[first]) @ rates
            np.maximum(least[first:], bound, out=least[first:])
        row = int(np.argmin((least - enough).min(0)))
        return f"too fast to be sure that not: {self.clearance.describe(row)}"


def _between(way: np.ndarray, which: np.ndarray, rates: np.ndarray, step: float) -> np.ndarray:
    """Return poses f64 [n, u] on chosen lines, bool [t - 1], of a way f64 [t, u].

    They include the ends of the lines, and are so dense that no distance, which changes at its rate
    f64 [p, u], changes by more than a step in metres.
    """
    (lines,) = np.nonzero(which)
    moved = way[lines + 1] - way[lines]
    parts = np.maximum(1, np.ceil((np.abs(moved) @ rates.T).max(1) / step)).astype(np.intp)
    line = np.repeat(np.arange(len(lines)), parts + 1)
    part = np.arange(len(line)) - np.repeat(np.cumsum(parts + 1) - parts - 1, parts + 1)
    poses: np.ndarray = way[lines][line] + (part / parts[line])[:, None] * moved[line]
    return poses
