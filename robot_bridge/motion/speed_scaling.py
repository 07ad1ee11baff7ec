"""Speed scaling: a plan is followed at a ramped share of its own time.

A scaled plan keeps its path and falls behind its time. Chunks of the same decision are joined to
the part of the plan that is still to be done. A new decision starts from the arm's present pose, so
the plan's clock starts again. This module does not import ROS and reads no clock.
"""

from dataclasses import dataclass, field

import numpy as np

from robot_bridge.motion.plan import Plan

RAMP_S = 0.25
"""Time in s of the ramp from 1 to 0, and back."""
LONGEST_S = 30.0
"""Largest lag in s of a plan; beyond it the plan's clock starts again."""


@dataclass
class SpeedScaling:
    """Requested and present share of a plan's time. Times are of the monotonic clock."""

    monitored: bool
    """Whether silence of the monitor means share 0; otherwise it means share 1."""
    timeout_s: float
    """Longest silence in s of the monitor."""
    share: float = field(init=False)
    """Present share of a plan's time, in [0, 1]."""
    behind_s: float = 0.0
    """Lag in s of the present plan behind its own time."""
    requested: float = 1.0
    requested_s: float = -np.inf
    ticked_s: float = np.nan

    def __post_init__(self) -> None:
        """Start with the share that silence means."""
        self.share = 0.0 if self.monitored else 1.0

    def request(self, now_s: float, share: float) -> None:
        """Take a requested share in [0, 1]."""
        self.requested, self.requested_s = share, now_s

    def timed_out(self, now_s: float) -> bool:
        """Return whether the last request is older than the timeout."""
        return not now_s - self.requested_s <= self.timeout_s

    def target_share(self, now_s: float) -> float:
        """Return the share at the end of the ramp."""
        if self.timed_out(now_s):
            return 0.0 if self.monitored else 1.0
        return self.requested

    def tick(self, now_s: float) -> None:
        """Advance to now."""
        passed_s = max(0.0, now_s - self.ticked_s) if np.isfinite(self.ticked_s) else 0.0
        self.ticked_s = now_s
        step = passed_s / RAMP_S
        self.share += float(np.clip(self.target_share(now_s) - self.share, -step, step))
        self.behind_s += (1 - self.share) * passed_s

    def join(self, now_s: float, old: Plan | None, new: Plan) -> tuple[Plan, float]:
        """Return the plan to follow after `new` has come, and its lag in s.

        Both plans are inside the joints' ranges.
        """
        if not 0 < self.behind_s <= LONGEST_S or old is None or not _continues(old, new):
            return new, 0.0
        pending = old.times_s < new.times_s[0] - 1e-6
        first = max(0, int(np.searchsorted(old.times_s, now_s - self.behind_s, "right")) - 1)
        pending[:first] = False
        pending[_first_shared(old, new) :] = False  # the new plan repeats these
        return Plan(
            times_s=np.concatenate([old.times_s[pending], new.times_s]),
            positions=np.concatenate([old.positions[pending], new.positions]),
        ), self.behind_s


def _first_shared(old: Plan, new: Plan) -> int:
    """Return the index of the old plan's target at the beginning of the new plan."""
    return int(np.argmin(np.abs(old.times_s - new.times_s[0])))


def _continues(old: Plan, new: Plan) -> bool:
    """Return whether the new plan repeats what is left of the old one."""
    if len(old.times_s) < 2 or new.times_s[0] >= old.end_s + 1e-6:
        return False
    rest = old.positions[_first_shared(old, new) :]
    both = min(len(rest), len(new.positions))
    return both > 0 and bool(np.array_equal(rest[:both], new.positions[:both]))
