"""What a position controller does with the commands it gets, and a log of them; no ROS here.

It stands between the inputs of a simulated arm and its motors. Times are seconds of any one clock.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robot_bridge.realtime import Line

TRAJECTORY, FORWARD = 0, 1
"""Inputs, as `InputLog` numbers them."""


class Actuator:
    """Setpoints of all joints between commands: the latest command counts, the last one is held.

    Points of a trajectory are joined by straight lines, as `joint_trajectory_controller` joins
    points without velocities; the first line begins at the setpoint of the moment it came.
    """

    def __init__(self, start: np.ndarray, lag_s: float = 0.0) -> None:
        """Hold a pose, shape (u,), from time 0 on.

        Args:
            start: Where the arm is.
            lag_s: Time constant of motors that follow setpoints as a first-order filter; 0: none.
        """
        self.lag_s = lag_s
        self.reset_(start, 0.0)

    def reset_(self, start: np.ndarray, now_s: float) -> None:
        """Forget all commands, and hold a pose, shape (u,)."""
        self._output = np.array(start, np.float64)
        self._now_s = now_s
        self.set_(self._output)

    def set_(self, positions: np.ndarray) -> None:
        """Take a command without a time: the setpoints, shape (u,), are these at once."""
        self._times_s = np.array([self._now_s])
        self._points = np.array(positions, np.float64)[None]

    def follow_(self, times_s: np.ndarray, points: np.ndarray) -> None:
        """Take a trajectory; points whose time has passed count as the past of the line.

        Args:
            times_s: When each point is to be reached, increasing, shape (k,).
            points: Positions, shape (k, u).
        """
        setpoint = self.setpoint(self._now_s)
        ahead = int(np.searchsorted(times_s, self._now_s, side="right"))
        if ahead == 0:
            self._times_s = np.concatenate([[self._now_s], times_s])
            self._points = np.concatenate([setpoint[None], points])
        else:
            self._times_s = np.array(times_s[ahead - 1 :], np.float64)
            self._points = np.array(points[ahead - 1 :], np.float64)

    def setpoint(self, at_s: float) -> np.ndarray:
        """Return what is commanded for a time, shape (u,)."""
        times_s, points = self._times_s, self._points
        i = int(np.searchsorted(times_s, at_s, side="right"))
        if i == 0 or i == len(times_s):
            return points[max(i - 1, 0)].copy()
        share = (at_s - times_s[i - 1]) / (times_s[i] - times_s[i - 1])
        return points[i - 1] + share * (points[i] - points[i - 1])

    def advance_(self, now_s: float) -> np.ndarray:
        """Go on to a later time; return what the motors get there, shape (u,)."""
        elapsed_s = now_s - self._now_s
        self._now_s = now_s
        setpoint = self.setpoint(now_s)
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
    """When it gets through."""
    start_s: float | None
    """Moment from which its times count; None: from when it gets through."""
    times_s: np.ndarray | None
    """Time of each point; None for one without times."""
    points: np.ndarray
    """Positions f64 [k, u], all finite."""


class Controller:
    """An actuator behind a line; commands may come from another thread than the ticks."""

    def __init__(self, actuator: Actuator, line: Line, rng: np.random.Generator) -> None:
        """Obey commands as a line delivers them; losses and jitter are drawn from `rng`."""
        self.counts = {"commands": 0, "not_finite": 0, "lost_commands": 0}
        self._actuator, self._line, self._rng = actuator, line, rng
        self._commands: deque[Command] = deque()
        self._last_due_s = 0.0

    def take_(
        self, now_s: float, points: np.ndarray, times_s: np.ndarray | None = None,
        start_s: float | None = None,
    ) -> None:  # fmt: skip
        """Take a command at the input; one that is not finite is counted and goes no further.

        A real controller would do something terrible; here the physics has to go on.

        Args:
            now_s: When it came.
            points: Positions, shape (k, u).
            times_s: Time of each point, shape (k,); None for one point that counts at once.
            start_s: Moment from which the times count; None: from when it gets through.
        """
        self.counts["commands"] += 1
        if not np.isfinite(points).all():
            self.counts["not_finite"] += 1
            return
        due_s = self._line.due(self._rng, now_s, self._last_due_s)
        if due_s is None:
            self.counts["lost_commands"] += 1
            return
        self._last_due_s = due_s
        self._commands.append(Command(due_s, start_s, times_s, points))

    def reset_(self, start: np.ndarray, now_s: float) -> None:
        """Forget all commands, those on the way as well, and hold a pose, shape (u,)."""
        self._commands.clear()
        self._actuator.reset_(start, now_s)

    def advance_(self, begin_s: float, end_s: float) -> np.ndarray:
        """Obey what has got through by the begin of a tick; return what motors get, shape (u,)."""
        while self._commands and self._commands[0].due_s <= begin_s:
            command = self._commands.popleft()
            if command.times_s is None:
                self._actuator.set_(command.points[0])
            else:
                start_s = begin_s if command.start_s is None else command.start_s
                self._actuator.follow_(start_s + command.times_s, command.points)
        return self._actuator.advance_(end_s)


class InputLog:
    """Every command as it came, before anything was done to it: one row per point."""

    def __init__(self, joints: tuple[str, ...]) -> None:
        """Begin an empty log of joints, in the order of its columns."""
        self.joints = joints
        self._rows = 0
        self._columns = self._room(256)

    def __len__(self) -> int:
        return self._rows

    def add_(
        self, received_s: float, source: int, from_start_s: np.ndarray, points: np.ndarray
    ) -> None:
        """Append a command.

        Args:
            received_s: Monotonic time at which it came.
            source: `TRAJECTORY` or `FORWARD`.
            from_start_s: Its points' times from its start, shape (k,).
            points: Positions, NaN as well, shape (k, u).
        """
        end = self._rows + len(points)
        if end > len(self._columns["received_s"]):
            larger = self._room(2 * end)
            for name, column in self._columns.items():
                larger[name][: self._rows] = column[: self._rows]
            self._columns = larger
        new = {
            "received_s": received_s, "source": source, "from_start_s": from_start_s,
            "positions": points,
        }  # fmt: skip
        for name, values in new.items():
            self._columns[name][self._rows : end] = values
        self._rows = end

    def columns(self) -> dict[str, np.ndarray]:
        """Return received_s f64 [n], source u8 [n], from_start_s f64 [n], positions f64 [n, u]."""
        return {name: column[: self._rows].copy() for name, column in self._columns.items()}

    def write(self, path: Path) -> None:
        """Write the columns and the joints' names as .npz."""
        np.savez(path, joints=np.array(self.joints), **self.columns())  # type: ignore[arg-type]

    def _room(self, rows: int) -> dict[str, np.ndarray]:
        return {
            "received_s": np.empty(rows),
            "source": np.empty(rows, np.uint8),
            "from_start_s": np.empty(rows),
            "positions": np.empty((rows, len(self.joints))),
        }
