"""State of a running episode by a reward model's scores: nominal, stalled, regressed or done.

Only scores with enough confidence count, and only the time in which there are such scores. So a
reward model that abstains never stops an arm by itself and never ends a stop: the last state stays
until the next score. The node decides what follows from a state. This module does not import ROS.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robot_bridge.launching.node_settings import ranged
from vla.contracts.config import validate_min

State = Literal["nominal", "stalled", "intervention_requested", "regressed", "done"]
"""nominal: progress continues.
stalled: no progress for `stall_s`.
intervention_requested: no progress for `help_s`.
regressed: progress fell by `drop`.
done: the task is complete; nothing is checked until the next episode."""


@dataclass(frozen=True, kw_only=True)
class ProgressMonitorConfig:
    """Thresholds; parameters of `monitor`.

    `benchmarks.robot_bridge.monitor_study` chose the defaults for a reward model of two simulated
    tasks.
    """

    window_s: float = ranged(0.6, 0.0, 10.0)
    """Window in s of the median of progress."""
    gain: float = ranged(0.03, 0.0, 1.0)
    """Progress beyond the best so far that counts as a gain."""
    stall_s: float = ranged(3.0, 0.1, 600.0)
    """Time in s without a gain after which the arm is slowed."""
    help_s: float = ranged(7.5, 0.1, 600.0)
    """Time in s without a gain after which an intervention is requested."""
    drop: float = ranged(0.2, 0.01, 1.0)
    """Fall from the episode's best progress after which the arm is held."""
    sustain_s: float = ranged(0.2, 0.0, 60.0)
    """Time in s the fall has to last."""
    confident: float = ranged(0.2, 0.0, 1.0)
    """Smallest confidence of a score that counts."""
    done: float = ranged(0.5, 0.01, 1.0)
    """Median probability of completion from which nothing is checked any more."""

    def __post_init__(self) -> None:
        validate_min(self, window_s=0, gain=0, stall_s=0, drop=0, sustain_s=0, confident=0, done=0)
        if not self.help_s >= self.stall_s:
            raise ValueError(
                f"help_s: got {self.help_s}, expected at least stall_s, {self.stall_s}"
            )


class ProgressMonitor:
    """State of one episode; a new episode needs a new instance."""

    def __init__(self, config: ProgressMonitorConfig) -> None:
        self.config = config
        self.state: State = "nominal"
        self.why = "the episode has begun"
        self.best = -np.inf
        self.still_s = 0.0
        """Scored time in s since the last gain."""
        self.fallen_s = 0.0
        """Scored time in s since progress fell by `drop`."""
        self.level = np.nan
        """Median progress of the window; NaN before the first score."""
        self._window: deque[tuple[float, float, float]] = deque()
        self._last_s, self._low = -np.inf, False

    def update(self, time_s: float, value: float, done_prob: float, confidence: float) -> State:
        """Add a score and return the new state.

        Args:
            time_s: Time of the frame; a score that is not later than the last is dropped.
            value: Progress in [0, 1]; NaN if the reward model abstains.
            done_prob: Probability that the task is complete.
            confidence: Confidence of the value.
        """
        config = self.config
        counts = bool(np.isfinite(value) and confidence >= config.confident)
        if self.state == "done" or not counts or not time_s > self._last_s:
            return self.state
        while self._window and self._window[0][0] < time_s - config.window_s - 1e-6:
            self._window.popleft()
        # A silence is no scored time.
        passed_s = time_s - self._last_s if self._window else 0.0
        self._window.append((time_s, value, done_prob))
        self._last_s = time_s
        median = np.median(np.array(self._window)[:, 1:], axis=0)
        self.level = float(median[0])
        if median[1] >= config.done:
            self._set("done", f"complete with a probability of {median[1]:.2f}")
        else:
            self._compare(passed_s)
        return self.state

    def _compare(self, passed_s: float) -> None:
        config = self.config
        fall = self.best - self.level
        self.fallen_s = self.fallen_s + passed_s if fall >= config.drop and self._low else 0.0
        self._low = fall >= config.drop
        if self.state == "regressed":
            if fall > config.drop / 2:
                return
            self._set("nominal", f"progress is back at {self.level:.2f}")
            self.still_s = 0.0
        elif fall >= config.drop and self.fallen_s >= config.sustain_s - 1e-6:
            self._set("regressed", f"progress fell from {self.best:.2f} to {self.level:.2f}")
            return
        if self.level >= self.best + config.gain:
            gained = self.state in ("stalled", "intervention_requested")
            self.best, self.still_s = self.level, 0.0
            if gained:
                self._set("nominal", f"progress rose to {self.level:.2f}")
            return
        self.still_s += passed_s
        stalled = f"no progress beyond {self.best:.2f} for {self.still_s:.1f} s"
        if self.still_s >= config.help_s - 1e-6 and self.state != "intervention_requested":
            self._set("intervention_requested", stalled)
        elif self.still_s >= config.stall_s - 1e-6 and self.state == "nominal":
            self._set("stalled", stalled)

    def _set(self, state: State, why: str) -> None:
        self.state, self.why = state, why
