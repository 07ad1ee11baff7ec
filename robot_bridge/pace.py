"""How fast a plan is followed: a share of its own time, which ramps; no ROS, no clock here.

A plan at a share of its time keeps its path: it is behind by what was left out, and what its policy
sends again of the same decision is joined to what is still to be done of it. A new decision was
made on where the arm is by then: with it the plan's clock starts anew.
"""

from dataclasses import dataclass, field

import numpy as np

from robot_bridge.plan import Plan

RAMP_S = 0.25
"""Time of the share from 1 to 0, and back."""
LONGEST_S = 30.0
"""How far a plan may fall behind; beyond that its clock starts anew."""


@dataclass
class Pace:
    """What is asked for, and what is done of it. Times are of the monotonic clock."""

    monitored: bool
    """Whether silence of who asks means standing still; without, it means full speed."""
    silent_s: float
    """Longest silence of who asks."""
    share: float = field(init=False)
    """Of a plan's time, in [0, 1]."""
    behind_s: float = 0.0
    """How far the plan that is followed is behind its own time."""
    asked: float = 1.0
    heard_s: float = -np.inf
    ticked_s: float = np.nan

    def __post_init__(self) -> None:
        """Begin with what silence means."""
        self.share = 0.0 if self.monitored else 1.0

    def ask(self, now_s: float, share: float) -> None:
        """Take what is asked for, in [0, 1]."""
        self.asked, self.heard_s = share, now_s

    def silent(self, now_s: float) -> bool:
        """Whether nobody asks."""
        return not now_s - self.heard_s <= self.silent_s

    def wanted(self, now_s: float) -> float:
        """Return the share that is ramped to."""
        if self.silent(now_s):
            return 0.0 if self.monitored else 1.0
        return self.asked

    def tick(self, now_s: float) -> None:
        """Go on to now."""
        passed_s = max(0.0, now_s - self.ticked_s) if np.isfinite(self.ticked_s) else 0.0
        self.ticked_s = now_s
        step = passed_s / RAMP_S
        self.share += float(np.clip(self.wanted(now_s) - self.share, -step, step))
        self.behind_s += (1 - self.share) * passed_s

    def joined(self, now_s: float, old: Plan | None, new: Plan) -> tuple[Plan, float]:
        """Return the plan to follow once `new` has come, and how far it is behind.

        Args:
            now_s: Now.
            old: What is followed so far.
            new: What has come, inside its ranges as `old` is.
        """
        if not 0 < self.behind_s <= LONGEST_S or old is None or not _goes_on(old, new):
            return new, 0.0
        kept = old.times_s < new.times_s[0] - 1e-6
        first = max(0, int(np.searchsorted(old.times_s, now_s - self.behind_s, "right")) - 1)
        kept[:first] = False
        kept[_same(old, new) :] = False  # which the new one has, a little earlier or later
        return Plan(
            times_s=np.concatenate([old.times_s[kept], new.times_s]),
            positions=np.concatenate([old.positions[kept], new.positions]),
        ), self.behind_s


def _same(old: Plan, new: Plan) -> int:
    """Return which target of the old plan applies when the new one begins."""
    return int(np.argmin(np.abs(old.times_s - new.times_s[0])))


def _goes_on(old: Plan, new: Plan) -> bool:
    """Whether a plan is what another has still to do: sent anew, at a later step."""
    if len(old.times_s) < 2 or new.times_s[0] >= old.end_s + 1e-6:
        return False
    rest = old.positions[_same(old, new) :]
    both = min(len(rest), len(new.positions))
    return both > 0 and bool(np.array_equal(rest[:both], new.positions[:both]))
