"""Real-time ticks with deadlines, and models of delayed connections.

Python promises no hard real time: late ticks are counted, never hidden. This module does not import
ROS.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MOST_BEHIND = 3
"""Largest number of ticks caught up with in a burst."""


class TickDeadlines:
    """Deadlines of ticks on the monotonic clock, at multiples of a period.

    At most `MOST_BEHIND` late ticks follow one another at once; beyond that the deadlines move, and
    simulated time falls behind wall-clock time.
    """

    def __init__(self, period_s: float, begin_s: float) -> None:
        """Set the period and the monotonic time of the first deadline."""
        self.period_s = period_s
        self.ticks = 0
        self.overruns = 0
        """Number of times the deadlines moved."""
        self._begin_s = begin_s

    @property
    def deadline_s(self) -> float:
        """Monotonic time at which the next tick is due."""
        return self._begin_s + self.ticks * self.period_s

    def tick(self, now_s: float) -> float:
        """Count a tick that begins now; return its lateness in s."""
        late_s = now_s - self.deadline_s
        if late_s > MOST_BEHIND * self.period_s:
            self._begin_s += late_s
            self.overruns += 1
        self.ticks += 1
        return late_s

    def ticks_at(self, moment_s: float) -> float:
        """Return a time in ticks since the first deadline, with fraction."""
        return (moment_s - self._begin_s) / self.period_s


class PeriodicTimer:
    """A periodic event, polled at ticks that need not divide its period."""

    def __init__(self, period_s: float, slack_s: float) -> None:
        """Start with the first event due at time 0.

        Args:
            period_s: Seconds between events; missed ones are not made up for.
            slack_s: How early an event may be; half a tick gives the right mean rate.
        """
        self._period_s = period_s
        self._slack_s = slack_s
        self._due_s = 0.0

    def restart(self, now_s: float) -> None:
        """Make the next event due now."""
        self._due_s = now_s

    def poll(self, now_s: float) -> bool:
        """Return whether an event is due, and if so schedule the next one."""
        if now_s + self._slack_s < self._due_s:
            return False
        self._due_s = max(self._due_s, now_s - self._slack_s) + self._period_s
        return True


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Delay, jitter and losses of a connection; it keeps the order of messages."""

    latency_s: float = 0.0
    """Delay of every message."""
    jitter_s: float = 0.0
    """Upper end of a further delay, drawn for each message from 0 to this."""
    drop: float = 0.0
    """Probability that a message is lost."""

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s", "drop"):
            value, most = getattr(self, name), 1 if name == "drop" else 10
            if not 0 <= value <= most:  # NaN is not
                raise ValueError(f"{name}: got {value}, expected 0 to {most}")

    def arrival_s(self, rng: np.random.Generator, sent_s: float, last_due_s: float) -> float | None:
        """Return the arrival time of a message, or None if it is lost.

        Args:
            rng: Generator; two numbers are drawn in any case.
            sent_s: Time of sending.
            last_due_s: Arrival of the previous message, which is never overtaken.
        """
        lost, extra = rng.random(2)
        if lost < self.drop:
            return None
        return max(sent_s + self.latency_s + self.jitter_s * float(extra), last_due_s)


class Outbox:
    """Calls functions at their times in a thread, so that slow readers do not stall the physics."""

    def __init__(self) -> None:
        """Start the thread."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)
        self._thread.start()

    def put(self, due_s: float, act: Callable[[], None]) -> None:
        """Schedule a call at a monotonic time; calls due together keep their order."""
        with self._changed:
            heapq.heappush(self._heap, (due_s, next(self._number), act))
            self._changed.notify()

    def close(self) -> None:
        """Drop pending calls, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (wait_s := self._wait_s()) != 0.0:
                    self._changed.wait(wait_s)
                if self._closed:
                    return
                act = heapq.heappop(self._heap)[2]
            act()

    def _wait_s(self) -> float | None:
        """Return seconds until the next call, at least 0; None if none is pending."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None
