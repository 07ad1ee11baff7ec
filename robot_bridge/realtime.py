"""Time of a simulated machine: ticks with deadlines, and connections that are late; no ROS here.

Python promises no hard real time: what a tick came late is counted, never hidden.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


class Pace:
    """Deadlines of ticks on the monotonic clock, at equal distances from the first one.

    Ticks that came late follow one another at once, but no more than a few: beyond that, the
    deadlines move, and simulated time falls behind the clock on the wall.
    """

    def __init__(self, period_s: float, begin_s: float, most_behind: int = 3) -> None:
        """Set the first deadline.

        Args:
            period_s: Seconds between deadlines.
            begin_s: Monotonic time of the first one.
            most_behind: Ticks that may be caught up with in a burst.
        """
        self.period_s = period_s
        self.most_behind = most_behind
        self.ticks = 0
        self.overruns = 0
        """How often the deadlines had to move."""
        self._begin_s = begin_s

    @property
    def deadline_s(self) -> float:
        """Monotonic time at which the next tick is due."""
        return self._begin_s + self.ticks * self.period_s

    def tick_(self, now_s: float) -> float:
        """Count a tick that begins now; return how many seconds it is late."""
        late_s = now_s - self.deadline_s
        if late_s > self.most_behind * self.period_s:
            self._begin_s += late_s
            self.overruns += 1
        self.ticks += 1
        return late_s

    def ticks_at(self, moment_s: float) -> float:
        """Return the moment in ticks since the first deadline, with its fraction."""
        return (moment_s - self._begin_s) / self.period_s


class Every:
    """When something that comes round is due, asked at ticks that need not divide its period."""

    def __init__(self, period_s: float, slack_s: float) -> None:
        """Be due at time 0.

        Args:
            period_s: Seconds between two times; of late ones, none are made up for.
            slack_s: How much too early counts as due: half a tick gives the right mean.
        """
        self._period_s = period_s
        self._slack_s = slack_s
        self._due_s = 0.0

    def restart_(self, now_s: float) -> None:
        """Be due now."""
        self._due_s = now_s

    def due_(self, now_s: float) -> bool:
        """Return whether it is due; if so, it is due again a period later."""
        if now_s + self._slack_s < self._due_s:
            return False
        self._due_s = max(self._due_s, now_s - self._slack_s) + self._period_s
        return True


@dataclass(frozen=True, kw_only=True)
class Line:
    """How a connection delivers: when, and whether; it never changes the order."""

    latency_s: float = 0.0
    """Delay of every message."""
    jitter_s: float = 0.0
    """Upper end of a further delay, drawn anew for each message between 0 and this."""
    drop: float = 0.0
    """Probability that a message is lost."""

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s", "drop"):
            value, most = getattr(self, name), 1 if name == "drop" else 10
            if not 0 <= value <= most:  # NaN is not
                raise ValueError(f"{name}: got {value}, expected 0 to {most}")

    def due(self, rng: np.random.Generator, sent_s: float, last_due_s: float) -> float | None:
        """Return when a message arrives, or None if it is lost.

        Args:
            rng: Drawn from twice, whatever becomes of the message.
            sent_s: When it is sent.
            last_due_s: When the one before it arrives: no message overtakes another.
        """
        lost, extra = rng.random(2)
        if lost < self.drop:
            return None
        return max(sent_s + self.latency_s + self.jitter_s * float(extra), last_due_s)


class Outbox:
    """Does things at their times, in a thread: a slow reader or a late line stalls no physics."""

    def __init__(self) -> None:
        """Start the thread."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)
        self._thread.start()

    def put(self, due_s: float, act: Callable[[], None]) -> None:
        """Have something done at a monotonic time; what is due together keeps its order."""
        with self._changed:
            heapq.heappush(self._heap, (due_s, next(self._number), act))
            self._changed.notify()

    def close(self) -> None:
        """Drop what is not due yet, and end the thread."""
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
        """Return seconds until something is due, at least 0; None if nothing is waiting."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None
