"""What the stages that know the arm's model have to offer the gate."""

from typing import Protocol, runtime_checkable

import numpy as np

from robot_bridge.motion.braking import Motion
from robot_bridge.motion.limits import Limits


@runtime_checkable
class Obstacles(Protocol):
    """Checks ways for collisions; `robot_bridge.safety.collision` does so by the arm's model."""

    def begin(self, pose: np.ndarray) -> None:
        """Start at rest at a pose f64 [u]; what touches there may touch, but no deeper."""

    def hit(self, way: np.ndarray) -> str:
        """Return what would collide on a way f64 [t, u] from the arm's pose, "" if nothing.

        A way without collision counts as taken.
        """


@runtime_checkable
class ToolSpeedBound(Protocol):
    """Bounds the tool's speed; `robot_bridge.safety.tool_speed` does so by the arm's model."""

    def slowed(
        self, limits: Limits, motion: Motion, target: np.ndarray, speed: np.ndarray
    ) -> Limits:
        """Return limits with which joints that follow a target keep the tool slow enough."""

    def is_exceeded(self, way: np.ndarray) -> bool:
        """Return whether the tool is too fast on a way f64 [t, u], one pose per tick."""


class Unbounded:
    """No bound on the tool's speed."""

    def slowed(
        self, limits: Limits, motion: Motion, target: np.ndarray, speed: np.ndarray
    ) -> Limits:
        """Return the limits."""
        return limits

    def is_exceeded(self, way: np.ndarray) -> bool:
        """Return False."""
        return False
