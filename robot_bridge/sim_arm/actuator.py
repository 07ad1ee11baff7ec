"""What is between commands and a simulated arm: connection, controller and motors; and a log.

Times are seconds of one clock. This module does not import ROS.
"""

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from robot_bridge.sim_arm.realtime_clock import LinkModel
from robot_bridge.sim_arm.trajectory_controller import Trajectory, TrajectoryController

TRAJECTORY, FORWARD = 0, 1
"""Inputs, as `InputLog` numbers them."""


class Actuator:
    """A trajectory controller and the motors behind it."""

    def __init__(
        self, start: np.ndarray, lag_s: float = 0.0, *, interpolate_from_desired_state: bool = True
    ) -> None:
        """Hold a pose, shape (u,), from time 0 on.

        Args:
            start: Pose of the arm.
            lag_s: Time constant of the motors, a first-order filter; 0: none.
            interpolate_from_desired_state: See `TrajectoryController`.
        """
        self.lag_s = lag_s
        self.controller = TrajectoryController(
            start, interpolate_from_desired_state=interpolate_from_desired_state
        )
        self.reset(start, 0.0)

    def reset(self, start: np.ndarray, now_s: float) -> None:
        """Drop all commands, and hold a pose, shape (u,)."""
        self._output = np.array(start, np.float64)
        self._now_s = now_s
        self.set_setpoint(self._output)

    def set_setpoint(self, positions: np.ndarray) -> None:
        """Set the setpoints, shape (u,), at once."""
        self.controller.hold(positions, self._now_s)

    def advance(self, now_s: float) -> np.ndarray:
        """Advance to a time; return the output of the motors, shape (u,)."""
        elapsed_s = now_s - self._now_s
        self._now_s = now_s
        setpoint = self.controller.update(now_s, self._output).p
        if self.lag_s > 0:
            # dx/dt = (setpoint - x) / lag, solved for a setpoint that holds over the interval.
            share = -np.expm1(-elapsed_s / self.lag_s)
            self._output = self._output + share * (setpoint - self._output)
        else:
            self._output = setpoint
        return self._output.copy()


@dataclass(frozen=True)
class Command:
    """One command on its way from the input."""

    due_s: float
    """Arrival time."""
    trajectory: Trajectory | None
    """Points with times; None for one without."""
    pose: np.ndarray
    """Positions f64 [u] of the first point."""


class Controller:
    """An actuator behind a connection; commands may come from another thread than the ticks."""

    def __init__(self, actuator: Actuator, link: LinkModel, rng: np.random.Generator) -> None:
        """Connect an actuator by a link model; `rng` draws losses and jitter."""
        self.counts = {"commands": 0, "not_finite": 0, "lost_commands": 0}
        self._actuator, self._link, self._rng = actuator, link, rng
        self._commands: deque[Command] = deque()
        self._last_due_s = 0.0

    def receive(self, now_s: float, command: Trajectory | np.ndarray) -> None:
        """Receive a command; one that is not finite is counted and dropped.

        Args:
            now_s: Time of sending.
            command: A trajectory, or a pose f64 [u] that counts at once.
        """
        self.counts["commands"] += 1
        trajectory = command if isinstance(command, Trajectory) else None
        pose = command if isinstance(command, np.ndarray) else command.positions[0]
        values = [pose] if trajectory is None else trajectory.columns()
        if not all(np.isfinite(column).all() for column in values):
            self.counts["not_finite"] += 1
            return
        due_s = self._link.arrival_s(self._rng, now_s, self._last_due_s)
        if due_s is None:
            self.counts["lost_commands"] += 1
            return
        self._last_due_s = due_s
        self._commands.append(Command(due_s, trajectory, pose))

    def reset(self, start: np.ndarray, now_s: float) -> None:
        """Drop all commands, pending ones included, and hold a pose, shape (u,)."""
        self._commands.clear()
        self._actuator.reset(start, now_s)

    def advance(self, begin_s: float, end_s: float) -> np.ndarray:
        """Apply commands that arrived before a tick; return the motors' output, shape (u,)."""
        while self._commands and self._commands[0].due_s <= begin_s:
            command = self._commands.popleft()
            if command.trajectory is None:
                self._actuator.set_setpoint(command.pose)
                continue
            stamp_s = command.trajectory.stamp_s
            self._actuator.controller.receive(
                replace(command.trajectory, stamp_s=begin_s if stamp_s is None else stamp_s)
            )
        return self._actuator.advance(end_s)


class InputLog:
    """Log of received commands, one row per point."""

    def __init__(self, joints: tuple[str, ...]) -> None:
        """Start an empty log; `joints` is the order of its columns."""
        self.joints = joints
        self._commands: list[tuple[float, int, np.ndarray, np.ndarray]] = []

    def append(
        self, received_s: float, source: int, from_start_s: np.ndarray, points: np.ndarray
    ) -> None:
        """Append a command.

        Args:
            received_s: Monotonic time of arrival.
            source: `TRAJECTORY` or `FORWARD`.
            from_start_s: Times of the points from the start, shape (k,).
            points: Positions, possibly NaN, shape (k, u).
        """
        self._commands.append((received_s, source, from_start_s, points))

    def write(self, path: Path) -> None:
        """Write the joints' names and the columns as .npz.

        They are received_s f64 [n], source u8 [n], from_start_s f64 [n], positions f64 [n, u].
        """
        counts = np.array([len(points) for *_, points in self._commands], np.intp)
        np.savez(
            path,
            joints=np.array(self.joints),
            received_s=np.repeat([c[0] for c in self._commands], counts),
            source=np.repeat(np.array([c[1] for c in self._commands], np.uint8), counts),
            from_start_s=np.concatenate([np.empty(0), *(c[2] for c in self._commands)]),
            positions=np.concatenate(
                [np.empty((0, len(self.joints))), *(c[3] for c in self._commands)]
            ),
        )
