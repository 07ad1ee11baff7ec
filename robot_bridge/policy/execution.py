"""One goal of the action `execute_instruction`: how far it is, and why it ends.

This module does not import ROS; the caller passes the time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Error = Literal[
    "NONE", "CANCELED", "TIME_LIMIT", "NOT_ENABLED", "STOPPED", "REPLACED", "POLICY"
]  # fmt: skip
"""Why a goal ended, as constants of ExecuteInstruction.action."""
ARMED = ("holding", "tracking")
"""States of the safety node in which a policy may move the arm."""

ENABLED_S = 0.5
"""Time in s within which an arm that was just enabled is known to be."""
SILENT_S = 2.0
"""Silence of the safety node's status in s that counts as its end; it comes at 10 Hz."""


def number(values: Mapping[str, str], name: str) -> float:
    """Return a value of a status as a number, NaN if it is none."""
    try:
        return float(values.get(name, "nan"))
    except ValueError:
        return math.nan


class Outcome(NamedTuple):
    """How a goal ended."""

    error: Error
    message: str


@dataclass
class Execution:
    """A goal from its acceptance on; `outcome` is set once, and ends it."""

    instruction: str
    began_s: float
    """Time of its beginning, on the caller's clock."""
    limit_s: float
    """Time in s after which it ends without success."""
    scored_before: float = -1.0
    """Episode of the monitor when it began; only later ones are about this goal."""
    outcome: Outcome | None = None
    armed: bool = False
    """Whether the safety node was enabled since it began."""
    safety_state: str = ""
    monitor_state: str = ""
    progress: float = field(default=math.nan)
    """Last progress of the reward model in [0, 1]; NaN without a score."""
    heard_s: float = -math.inf
    """Time of the safety node's last status."""

    def end(self, error: Error, message: str) -> None:
        """Set the outcome, unless there is one."""
        if self.outcome is None:
            self.outcome = Outcome(error, message)

    def on_safety(self, values: Mapping[str, str], now_s: float) -> None:
        """Take a status of the safety node; an arm that is not enabled any more ends the goal."""
        self.safety_state, self.heard_s = values.get("state", ""), now_s
        if self.safety_state in ARMED:
            self.armed = True
        elif self.armed:
            why = values.get("why", "")
            said = f"{self.safety_state}: {why}" if why else self.safety_state
            self.end("STOPPED", f"the safety node is {said}")

    def on_monitor(self, values: Mapping[str, str]) -> None:
        """Take a status of the monitor; a state of done ends the goal with success."""
        if (
            not number(values, "episode") > self.scored_before
            or values.get("instruction") != self.instruction
        ):
            return
        self.monitor_state = values.get("state", "")
        value = number(values, "value")
        self.progress = value if math.isfinite(value) else self.progress
        if self.monitor_state == "done":
            self.end("NONE", values.get("why", ""))

    def tick(self, now_s: float) -> None:
        """End the goal when its time is up, or when the arm is not enabled."""
        if not self.armed and now_s - self.began_s >= ENABLED_S:
            hint = f"{self.safety_state or 'silent'}; enable it: vla safety enable"
            self.end("NOT_ENABLED", f"the safety node is {hint}")
        if self.armed and now_s - self.heard_s > SILENT_S:
            self.end("STOPPED", f"the safety node was silent for {SILENT_S:g} s")
        if now_s - self.began_s >= self.limit_s:
            progress = "no reward model" if math.isnan(self.progress) else f"{self.progress:.2f}"
            self.end("TIME_LIMIT", f"not done after {self.limit_s:g} s (progress: {progress})")
