"""Return and explore: an arm that gets no further goes back to where it began, and tries it aside.

On the way back it is driven straight to the first measured pose. Then the policy acts, but with its
tool displaced on the table by an offset that is drawn once and held: whoever misses by the same
centimetres every time misses them no longer.
"""

from dataclasses import dataclass, field

import numpy as np

from sim.kinematics import moved
from training.rl.experience import ASIDE, BACK, POLICY
from vla.contracts.specs import RobotSpec

DECISIONS = 3
"""Decisions of the way back."""
ASIDE_M = 0.02
"""Standard deviation of the offset in x and in y, metres."""
ON = 0.4
"""Progress above which the policy acts by itself again."""


@dataclass
class Retry:
    """What an arm is at, in one episode."""

    home: np.ndarray
    """First measured channel positions, f32 [u]."""
    rng: np.random.Generator
    """Draws the offsets."""
    tries: int = 0
    """How often it has gone back."""
    left: int = 0
    """Decisions of the way back that are still to come, this one among them."""
    offset_m: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Of the tool, in the world frame, metres [3]."""

    @property
    def by(self) -> int:
        """Who acts in this decision."""
        return BACK if self.left else ASIDE if self.offset_m.any() else POLICY

    def next_(self, stuck: bool, progress: float) -> bool:
        """Go on to the next decision; return whether progress is counted anew from here on.

        Args:
            stuck: Whether progress has stood still; not asked on the way back.
            progress: The critic's, NaN where it abstains.
        """
        if self.left:
            self.left -= 1
            return True
        if stuck:
            self.left, self.tries = DECISIONS, self.tries + 1
            self.offset_m = np.append(self.rng.normal(0.0, ASIDE_M, 2), 0.0)
        elif progress > ON:
            self.end_()
        return stuck

    def end_(self) -> None:
        """Let the policy act by itself from now on."""
        self.left, self.offset_m = 0, np.zeros(3)

    def actions(self, robot: RobotSpec, measured: np.ndarray, planned: np.ndarray) -> np.ndarray:
        """Return what is done instead of what the policy has planned, f32 [h, u].

        Args:
            robot: The arm.
            measured: f32 [u].
            planned: f32 [h, u].
        """
        if self.by == BACK:
            share = np.arange(1, len(planned) + 1) / (len(planned) * self.left)
            return (measured + share[:, None] * (self.home - measured)).astype(np.float32)
        if self.by == ASIDE:
            aside = [moved(robot, target, self.offset_m) for target in planned]
            return np.stack(aside).astype(np.float32)
        return planned
