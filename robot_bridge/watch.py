"""What a critic's progress says of a running episode: fine, stalled or collapsed; no ROS here.

Only what the critic says with confidence is looked at, and only time in which it speaks is counted.
So a critic that abstains never stops an arm by itself, nor does it keep a collapse from being held:
what was found last stands until it speaks again. What is done about it, the node decides.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vla.contracts.config import check_least

State = Literal["fine", "slow", "help", "hold", "done"]
"""fine: progress goes on.
slow: it has stalled.
help: it has stalled for longer than it mends itself.
hold: much of what was reached is lost.
done: the task is complete; nothing is watched until the next episode."""


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """When progress counts as stalled, collapsed and done; the defaults are those that
    `robot_bridge.monitor_study` chose for a critic of two simulated tasks.
    """

    window_s: float = 0.6
    """Over which the median of progress is taken."""
    gain: float = 0.03
    """Progress beyond the best so far that counts as going on."""
    stall_s: float = 3.0
    """Time without such a gain after which the arm is slowed."""
    help_s: float = 7.5
    """Time without such a gain after which help is asked for."""
    drop: float = 0.2
    """Fall from the best of the episode that is a collapse."""
    sustain_s: float = 0.2
    """How long the fall has to last."""
    confident: float = 0.2
    """Least confidence of what is looked at."""
    done: float = 0.5
    """Probability of completion, as a median, from which nothing is watched any more."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, window_s=0, gain=0, stall_s=0, drop=0, sustain_s=0, confident=0, done=0)
        if not self.help_s >= self.stall_s:
            raise ValueError(
                f"help_s: got {self.help_s}, expected at least stall_s, {self.stall_s}"
            )


class Watch:
    """Watches one episode; a new episode is a new one of these."""

    def __init__(self, config: WatchConfig) -> None:
        self.config = config
        self.state: State = "fine"
        self.why = "the episode has begun"
        self.best = -np.inf
        self.still_s = 0.0
        """Time watched since the last gain."""
        self.fallen_s = 0.0
        """Time watched since progress fell far."""
        self.level = np.nan
        """Median progress of late; NaN before the critic first spoke."""
        self._seen: deque[tuple[float, float, float]] = deque()
        self._last_s, self._low = -np.inf, False

    def take(self, time_s: float, value: float, done_prob: float, confidence: float) -> State:
        """Take what the critic says of a moment, and return the state after it.

        Args:
            time_s: Of the moment; one that is no later than the last is lost.
            value: Progress in [0, 1]; NaN where the critic abstains.
            done_prob: Probability that the task is complete.
            confidence: Of the value.
        """
        config = self.config
        speaks = bool(np.isfinite(value) and confidence >= config.confident)
        if self.state == "done" or not speaks or not time_s > self._last_s:
            return self.state
        while self._seen and self._seen[0][0] < time_s - config.window_s - 1e-6:
            self._seen.popleft()
        # Across a silence nothing was watched.
        passed_s = time_s - self._last_s if self._seen else 0.0
        self._seen.append((time_s, value, done_prob))
        self._last_s = time_s
        middle = np.median(np.array(self._seen)[:, 1:], axis=0)
        self.level = float(middle[0])
        if middle[1] >= config.done:
            self._go("done", f"complete with a probability of {middle[1]:.2f}")
        else:
            self._judge(passed_s)
        return self.state

    def _judge(self, passed_s: float) -> None:
        config = self.config
        fall = self.best - self.level
        self.fallen_s = self.fallen_s + passed_s if fall >= config.drop and self._low else 0.0
        self._low = fall >= config.drop
        if self.state == "hold":
            if fall > config.drop / 2:
                return
            self._go("fine", f"progress is back at {self.level:.2f}")
            self.still_s = 0.0
        elif fall >= config.drop and self.fallen_s >= config.sustain_s - 1e-6:
            self._go("hold", f"progress fell from {self.best:.2f} to {self.level:.2f}")
            return
        if self.level >= self.best + config.gain:
            gained = self.state in ("slow", "help")
            self.best, self.still_s = self.level, 0.0
            if gained:
                self._go("fine", f"progress rose to {self.level:.2f}")
            return
        self.still_s += passed_s
        stalled = f"no progress beyond {self.best:.2f} for {self.still_s:.1f} s"
        if self.still_s >= config.help_s - 1e-6 and self.state != "help":
            self._go("help", stalled)
        elif self.still_s >= config.stall_s - 1e-6 and self.state == "fine":
            self._go("slow", stalled)

    def _go(self, state: State, why: str) -> None:
        self.state, self.why = state, why
