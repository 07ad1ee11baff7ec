"""Retry: an arm without progress retraces its way to the first pose and tries with an offset.

It is driven straight to the first measured pose. Then the policy acts with its tool displaced on
the table by an offset that is drawn once and held, so that it does not miss by the same centimetres
again.
"""

from dataclasses import dataclass, field

import numpy as np

from sim.core.kinematics import moved
from training.rl.experience.episode import ActionSource
from vla.contracts.specs import RobotSpec

RETRACE_DECISIONS = 3
"""Decisions of a retrace."""
RESUME_PROGRESS = 0.4
"""Progress above which the policy acts without an offset again."""


@dataclass
class Retry:
    """State of the retries of one episode."""

    home: np.ndarray
    """First measured channel positions, f32 [u]."""
    rng: np.random.Generator
    """Draws the offsets."""
    offset_std_m: float
    """Standard deviation of the offset in x and in y, metres."""
    count: int = 0
    """Retries so far."""
    retrace_left: int = 0
    """Decisions of the retrace that are still to come, this one among them."""
    offset_m: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Of the tool, in the world frame, metres [3]."""

    @property
    def action_source(self) -> ActionSource:
        """Who acts in this decision."""
        if self.retrace_left:
            return ActionSource.RETRACE
        return ActionSource.OFFSET_RETRY if self.offset_m.any() else ActionSource.POLICY

    def step(self, stalled: bool, progress: float) -> bool:
        """Advance to the next decision; return whether progress is counted from zero again.

        `progress` is NaN where the reward model abstains; `stalled` is ignored during a retrace.
        """
        if self.retrace_left:
            self.retrace_left -= 1
            return True
        if stalled:
            self.retrace_left, self.count = RETRACE_DECISIONS, self.count + 1
            self.offset_m = np.append(self.rng.normal(0.0, self.offset_std_m, 2), 0.0)
        elif progress > RESUME_PROGRESS:
            self.end()
        return stalled

    def end(self) -> None:
        """Let the policy act without an offset from now on."""
        self.retrace_left, self.offset_m = 0, np.zeros(3)

    def actions(self, robot: RobotSpec, measured: np.ndarray, planned: np.ndarray) -> np.ndarray:
        """Return what is executed in place of the planned actions, f32 [h, u], from the measured
        positions f32 [u] on.
        """
        if self.action_source == ActionSource.RETRACE:
            share = np.arange(1, len(planned) + 1) / (len(planned) * self.retrace_left)
            return (measured + share[:, None] * (self.home - measured)).astype(np.float32)
        if self.action_source == ActionSource.OFFSET_RETRY:
            displaced = [moved(robot, target, self.offset_m) for target in planned]
            return np.stack(displaced).astype(np.float32)
        return planned
