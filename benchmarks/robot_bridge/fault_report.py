"""Results of fault schedules: violated limits and late stops."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from rich.table import Table

from benchmarks.robot_bridge import controller_replay


@dataclass
class Tally:
    """Counts over all schedules."""

    schedules: Counter[str] = field(default_factory=Counter)
    """By fault."""
    commands: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    """By limit."""
    worst: dict[str, float] = field(default_factory=dict)
    stops_s: dict[str, list[float]] = field(default_factory=dict)
    """By fault, from the fault to the last cycle of the controller that moved."""
    again: int = 0
    """Schedules that were repeated because a good policy was stopped."""
    overdue: int = 0
    """Schedules with a message later than the controller can make up for: a busy machine's."""
    beyond: list[str] = field(default_factory=list)
    """Limits that were broken, in words."""
    late: list[str] = field(default_factory=list)
    """Stops that took longer than stated, and motion after them."""

    def keep(self, kind: str, number: int, commands: int, worst: dict[str, float]) -> None:
        """Count a schedule of a fault, its commands, and how much of each limit they took.

        Args:
            kind: The fault.
            number: Its seed.
            commands: Number of commands.
            worst: Of `controller_replay.judge`.
        """
        self.schedules[kind] += 1
        self.commands += commands
        for name, value in worst.items():
            self.worst[name] = max(self.worst.get(name, -np.inf), value)
            most = 1e-8 if name == "position" else 1 + controller_replay.ROUNDING
            self.violations[name] += int(not value <= most)
            if not value <= most:
                self.beyond.append(f"schedule {number}, {kind}: {name} is {value:.6f} of its limit")

    def stop(
        self, kind: str, number: int, times_s: np.ndarray, path: np.ndarray, begin_s: float,
        due_s: float, still: float = 1e-9,
    ) -> None:  # fmt: skip
        """Note when the controller's reference came to rest.

        Args:
            kind: Its fault.
            number: Its seed.
            times_s: f64 [n], times of cycles.
            path: f64 [n, u], reference.
            begin_s: When the fault began.
            due_s: How long after that they may go on moving.
            still: Distance from the last pose within which all is at rest, rad or m.
        """
        moving = np.flatnonzero((np.abs(path - path[-1:]) > still).any(1))
        last_s = float(times_s[moving[-1] + 1]) if len(moving) else begin_s
        took_s = max(0.0, last_s - begin_s)
        self.stops_s.setdefault(kind, []).append(took_s)
        if took_s > due_s:
            self.late.append(
                f"schedule {number}, {kind}: at rest after {took_s:.2f} s, not {due_s:.2f}"
            )

    def sheet(self) -> Table:
        """Return the counts as a table."""
        table = Table(title=f"{sum(self.schedules.values())} schedules of faults")
        for column in ("fault", "schedules", "at rest after, median / longest"):
            table.add_column(column, justify="left" if column == "fault" else "right")
        for kind, count in self.schedules.items():
            stops = self.stops_s.get(kind)
            text = f"{np.median(stops):.2f} / {max(stops):.2f} s" if stops else "may move"
            table.add_row(kind, str(count), text)
        table.add_section()
        table.add_row("trajectories at the controller", f"{self.commands:,}", "")
        for name, value in self.worst.items():
            share = f"{value:.6f} of it" if name != "position" else f"{value:.1e} beyond"
            table.add_row(
                f"schedules beyond the limit of {name}", str(self.violations[name]), share
            )
        table.add_row("good policies stopped, and begun anew", str(self.again), "")
        table.add_row("with overdue messages, limits not judged", str(self.overdue), "")
        table.add_row("stops later than stated", str(len(self.late)), "")
        return table
