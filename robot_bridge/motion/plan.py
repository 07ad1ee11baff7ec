"""A plan: a chunk's targets with their times. This module does not import ROS."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Timed targets of all joints."""

    times_s: np.ndarray
    """f64 [k], increasing, by the monotonic clock."""
    positions: np.ndarray
    """f64 [k, u]."""

    @property
    def end_s(self) -> float:
        """Time of the last target."""
        return float(self.times_s[-1])

    def at(self, now_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Return position and velocity f64 [u] on the straight lines between targets.

        Before the first and after the last target the plan stands still.
        """
        times = self.times_s
        if now_s <= times[0] or len(times) == 1:
            return self.positions[0], np.zeros(self.positions.shape[1])
        if now_s >= times[-1]:
            return self.positions[-1], np.zeros(self.positions.shape[1])
        i = int(np.searchsorted(times, now_s, side="right")) - 1
        step = self.positions[i + 1] - self.positions[i]
        speed = step / (times[i + 1] - times[i])
        return self.positions[i] + (now_s - times[i]) * speed, speed
