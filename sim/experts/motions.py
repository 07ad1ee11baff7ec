"""How scripted experts move an arm: one-action-per-step motions; no tasks.

A motion reads the measured state at every control step and heads straight for its goal, so that the
action is a function of the observation and can be imitated without memory.
"""

from collections.abc import Iterator

import numpy as np

from sim.core.kinematics import solve
from sim.core.task import World

DEPTH_M = 0.01
"""How far `press` pushes into its goal."""


class Motion:
    """Makes actions for one episode of a world, from the measured state of each control step."""

    def __init__(self, world: World) -> None:
        """Bind to the world to act on; every action reads it."""
        self.world = world
        robot = world.robot
        period_s = 1.0 / robot.control_hz
        self._step_m = robot.reach_m[1] / 1.2 * period_s  # far from the goal: its reach in 1.2 s
        self.gripper = robot.names.index(robot.gripper.channel)
        self.opening = robot.home[self.gripper]
        self.wide = self.opened(0.75)
        velocity = np.array([c.velocity for c in robot.channels])
        acceleration = np.array([c.acceleration for c in robot.channels])
        # Setting out from rest, or stopping, changes the speed by stride / period in one period.
        self.stride = np.minimum(velocity, acceleration * period_s) * period_s

    @property
    def tool_m(self) -> np.ndarray:
        """Where the expert takes the tool to be in the world frame, metres, shape (3,)."""
        at: np.ndarray = self.world.data.site_xpos[self.world.tool_site] + self.world.tool_error_m
        return at

    @property
    def measured(self) -> np.ndarray:
        """Measured channel positions, shape (u,)."""
        return self.world.data.qpos[self.world.joint_qpos].copy()

    def opened(self, share: float) -> float:
        """Return how far the hand is open, in channel units, at a share of its range."""
        hand = self.world.robot.gripper
        return hand.closed + share * (hand.open - hand.closed)

    def solve(self, pos_m: np.ndarray, yaw_rad: float | None = None) -> np.ndarray:
        """Return channel positions with the tool at `pos_m` and the hand at the current opening."""
        place = np.asarray(pos_m) - self.world.tool_error_m
        goal = solve(self.world.robot, self.measured, place, yaw_rad)
        goal[self.gripper] = self.opening
        return goal

    def toward(
        self, pos_m: np.ndarray, yaw_rad: float | None = None, *, clearance_m: float = 0.0
    ) -> np.ndarray:
        """Return the one action that heads for `pos_m`: straight, slowing down near it.

        Args:
            pos_m: Goal of the tool, world frame, metres.
            yaw_rad: As in `solve`.
            clearance_m: Height to keep above the goal until the tool is over it.
        """
        tool = self.tool_m
        goal = np.array(pos_m, np.float64)
        aside = float(np.linalg.norm(goal[:2] - tool[:2]))
        # A funnel: down only as far as the tool is over the goal, in one smooth path.
        goal[2] += clearance_m * float(np.clip((aside - 0.006) / 0.03, 0.0, 1.0))
        offset = goal - tool
        distance = float(np.linalg.norm(offset))
        step = min(self._step_m, max(0.7 * distance, 0.012))
        if step < distance:
            goal = tool + offset * (step / distance)
        return self._limited(self.solve(goal, yaw_rad))

    def _limited(self, goal: np.ndarray) -> np.ndarray:
        """Return what of the way to `goal` can be done in one control step."""
        measured = self.measured
        robot = self.world.robot
        way = goal - measured
        # Slow down together what moves the tool, or its path bends; the last joint only turns
        # the hand about itself.
        arm = [i for i in range(len(way)) if i != self.gripper][:-1]
        way[arm] *= min(1.0, 1.0 / float(np.max(np.abs(way[arm]) / self.stride[arm] + 1e-9)))
        near = measured + np.clip(way, -self.stride, self.stride)
        return np.clip(near, robot.low, robot.high)

    def move(
        self,
        pos_m: np.ndarray,
        yaw_rad: float | None = None,
        *,
        clearance_m: float = 0.0,
        tolerance_m: float = 0.006,
        max_steps: int = 40,
    ) -> Iterator[np.ndarray]:
        """Yield actions until the tool is within `tolerance_m` of `pos_m`, `max_steps` at most."""
        for _ in range(max_steps):
            if np.linalg.norm(self.tool_m - pos_m) < tolerance_m:
                return
            yield self.toward(pos_m, yaw_rad, clearance_m=clearance_m)

    def grip(self, opening: float, max_steps: int = 12) -> Iterator[np.ndarray]:
        """Yield actions that open or close the hand, until it is there or a grasp stops it.

        The arm stays where it is; later motions keep the hand at `opening` (channel units).
        """
        self.opening = opening
        hold, still = self.measured, 0
        for _ in range(max_steps):
            before = self.measured[self.gripper]
            hold[self.gripper] = opening
            yield self._limited(hold)
            moved = abs(self.measured[self.gripper] - before)
            still = still + 1 if moved < 0.05 * self.stride[self.gripper] else 0
            if still >= 2:
                return

    def wait(self, steps: int) -> Iterator[np.ndarray]:
        """Yield `steps` actions that hold the arm where it is now."""
        hold = self.measured
        hold[self.gripper] = self.opening
        for _ in range(steps):
            yield self._limited(hold)

    def hover(
        self, pos_m: np.ndarray, yaw_rad: float | None = None, *, max_steps: int = 40
    ) -> Iterator[np.ndarray]:
        """Yield actions that go to `pos_m` and stay there for 15 steps."""
        yield from self.move(pos_m, yaw_rad, max_steps=max_steps)
        for _ in range(15):
            yield self.toward(pos_m, yaw_rad)

    def press(self, pos_m: np.ndarray, *, clearance_m: float = 0.05) -> Iterator[np.ndarray]:
        """Yield actions that come down on `pos_m`, hand closed, and push a centimetre into it."""
        self.opening = self.world.robot.gripper.closed
        yield from self.move(pos_m, clearance_m=clearance_m)
        below = np.asarray(pos_m) - np.array([0.0, 0.0, DEPTH_M])
        yield from self.move(below, tolerance_m=0.3 * DEPTH_M, max_steps=4)


def grasp_yaw(pos_m: np.ndarray, object_yaw_rad: float) -> float:
    """Return the yaw that closes on two faces of a box and turns the wrist least, radians.

    With the wrist as it is at home the opening direction is at right angles to the arm's plane,
    so its yaw is the azimuth of `pos_m`; the faces of a box repeat every quarter turn.
    """
    azimuth = float(np.arctan2(pos_m[1], pos_m[0]))
    quarter = np.pi / 2
    return azimuth + (object_yaw_rad - azimuth + quarter / 2) % quarter - quarter / 2
