"""Whether the way of an arm to a standstill collides: with itself, its table, its workspace's end.

A way is a row of poses, one per tick, and the arm goes straight from one to the next. All of it is
judged, not only its end and not only its ticks. A distance measured in one pose bounds it around
that pose: it changes by at most `Clearance.rates` times what the channels move. So every measured
pose makes a ball free, with each straight line between two poses inside. What balls are known is
laid over the way first: far from everything, that is all that a tick costs. Of what no ball covers,
poses are measured in order, each as far along as the ones before reach. Where the arm is too close
for that, they lie so close to each other that no distance changes by more than `margin` from one to
the next: it is at least `margin` at those, which all poses of the way are among, and at least half
of that between them.
No ROS here, and no time.
"""

from collections import deque

import numpy as np

from robot_bridge.clearance import Clearance

MOST = 64
"""Poses that are measured in one tick: who is so fast, so close, is refused."""
BALLS = 6
"""How many of the last measured poses are kept."""
ROUNDING_M = 1e-5
"""What a distance may be too small by."""


class Collision:
    """Judges the ways of one arm, each from where the one before was left."""

    def __init__(self, clearance: Clearance, margin: float) -> None:
        """Judge by an arm's distances; nothing may come closer than a margin in metres."""
        self.clearance, self.margin = clearance, margin
        self.floor = np.full(len(clearance.rates), margin)
        self.balls: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=BALLS)

    def begin(self, pose: np.ndarray) -> None:
        """Stand still at a pose f64 [u]; what is closer there than the margin may stay so."""
        found = self.clearance.at(pose)
        self.floor = np.minimum(self.margin, found)
        self.balls.append((pose, found))

    def hit(self, way: np.ndarray) -> str:
        """Return in words what would collide on a way f64 [t, u], "" if nothing would.

        The first pose is where the arm is, the last where it would stand. A way on which nothing
        collides counts as taken: what has come free on it has to stay free from then on.
        """
        least = self._known(way, ends=True)
        open_ = np.any(least < self.floor, axis=1)
        if open_.any():
            poses = _between(way, open_, self.clearance.rates, self.margin)
            seen = self._known(poses, ends=False)
            hit = self._measure(poses, seen)
            if hit:
                return hit
            least = np.concatenate([least[~open_], seen])
        if (self.floor < self.margin).any():
            self.floor = np.clip(least.min(0), self.floor, self.margin)
        return ""

    def _known(self, poses: np.ndarray, *, ends: bool) -> np.ndarray:
        """Return the least distance that is proven of poses f64 [t, u], f64 [t, p].

        With `ends`, f64 [t - 1, p]: of each straight line between two of them.
        """
        rates = self.clearance.rates.T
        least = np.full((len(poses) - ends, rates.shape[1]), -np.inf)
        for pose, found in reversed(self.balls):
            bound = found - np.abs(poses - pose) @ rates
            if ends:
                bound = np.minimum(bound[:-1], bound[1:])
            np.maximum(least, bound, out=least)
            if (least >= self.floor).all():
                break
        return least

    def _measure(self, poses: np.ndarray, least: np.ndarray) -> str:
        """Measure poses f64 [t, u] until all are proven; `least` f64 [t, p] is what is known.

        Returns:
            What would collide, "" if nothing.
        """
        rates, enough = self.clearance.rates.T, self.floor - ROUNDING_M
        first = 0
        for _ in range(MOST):
            open_ = (least[first:] < enough).any(1)
            if not open_.any():
                return ""
            first += int(np.argmax(open_))
            found = self.clearance.at(poses[first])
            short = found - enough
            if (short < 0).any():
                return self.clearance.says(int(np.argmin(short)))
            self.balls.append((poses[first], found))
            bound = found - np.abs(poses[first:] - poses[first]) @ rates
            np.maximum(least[first:], bound, out=least[first:])
        row = int(np.argmin((least - enough).min(0)))
        return f"too fast to be sure that not: {self.clearance.says(row)}"


def _between(way: np.ndarray, which: np.ndarray, rates: np.ndarray, step: float) -> np.ndarray:
    """Return poses f64 [n, u] on lines of a way, so close that no distance changes by a step.

    Args:
        way: Poses f64 [t, u].
        which: Of the lines between them, bool [t - 1]; their ends are among the poses.
        rates: How fast distances change, f64 [p, u].
        step: In metres.
    """
    (lines,) = np.nonzero(which)
    moved = way[lines + 1] - way[lines]
    parts = np.maximum(1, np.ceil((np.abs(moved) @ rates.T).max(1) / step)).astype(np.intp)
    line = np.repeat(np.arange(len(lines)), parts + 1)
    part = np.arange(len(line)) - np.repeat(np.cumsum(parts + 1) - parts - 1, parts + 1)
    poses: np.ndarray = way[lines][line] + (part / parts[line])[:, None] * moved[line]
    return poses
