"""Several clients, one policy: who waits is decided for in one call, and gets its own rows back."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from deploy.request import Refused, Request, decide
from vla.contracts.protocols import ArmPolicy

KEPT = 1000
"""Calls of the policy of which is known how long they took, and of how many rows."""


class _Ask:
    """A request that waits, and what became of it."""

    def __init__(self, request: Request, late: float) -> None:
        self.request, self.late = request, late
        self.found: dict[str, np.ndarray] | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.found is not None or self.error is not None


class Gatherer:
    """Decides for those who ask, one call of the policy at a time.

    One of those who wait decides for all: there is no thread between a client and the policy.

    Args:
        policy: In evaluation mode.
        rows: Most rows of a call.
        gather_s: How long a call waits for others to ask, as long as not all who could have.
        clients: How many could.
    """

    def __init__(
        self, policy: ArmPolicy, *, rows: int, gather_s: float, clients: Callable[[], int]
    ) -> None:
        self.policy, self.rows, self.gather_s, self.clients = policy, rows, gather_s, clients
        self.turn = threading.Condition()
        self.waiting: deque[_Ask] = deque()
        self.deciding = False
        self.calls: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self.decisions = 0

    def act(self, request: Request, late: float) -> dict[str, np.ndarray]:
        """Return values f32 [b, k, u] and the new memory of a request's rows.

        Args:
            request: What to decide.
            late: When it is too late to, by `time.monotonic`.

        Raises:
            Refused: it has become too late.
        """
        ask = _Ask(request, late)
        with self.turn:
            self.waiting.append(ask)
            self.turn.notify_all()  # one who gathers may have waited for this one
        while not ask.done:
            self._lead(ask)
        if ask.found is None:
            assert ask.error is not None
            raise ask.error
        return ask.found

    def told(self) -> dict[str, Any]:
        """Return decisions so far, and of the latest calls their seconds and mean rows."""
        with self.turn:
            calls, decisions = list(self.calls), self.decisions
        seconds = [one for one, _ in calls]
        return {
            "decisions": decisions,
            "mean_rows": float(np.mean([rows for _, rows in calls])) if calls else None,
            "p50_s": float(np.median(seconds)) if calls else None,
            "p99_s": float(np.percentile(seconds, 99)) if calls else None,
        }

    def _lead(self, ask: _Ask) -> None:
        """Wait until another has decided this; or decide for all who wait, if nobody does."""
        with self.turn:
            self.turn.wait_for(lambda: ask.done or not self.deciding)
            if ask.done:
                return
            self.deciding = True
            if self.gather_s:
                self.turn.wait_for(self._all_here, self.gather_s)
            asks = self._take()
        try:
            if asks:
                self._decide(asks)
        finally:
            with self.turn:
                self.deciding = False
                self.turn.notify_all()

    def _all_here(self) -> bool:
        rows = sum(ask.request.rows for ask in self.waiting)
        return rows >= self.rows or len(self.waiting) >= self.clients()

    def _take(self) -> list[_Ask]:
        """Return those who are decided for together, the longest waiting first."""
        asks: list[_Ask] = []
        rows, now = 0, time.monotonic()
        while self.waiting:
            ask = self.waiting[0]
            alike = not asks or ask.request.arrays.keys() == asks[0].request.arrays.keys()
            if asks and (rows + ask.request.rows > self.rows or not alike):
                break
            self.waiting.popleft()
            if now > ask.late:
                ask.error = Refused(
                    "waited too long for its turn; hold the arm, and observe anew, with fewer "
                    "clients or a larger age-s"
                )
                continue
            asks.append(ask)
            rows += ask.request.rows
        return asks

    def _decide(self, asks: list[_Ask]) -> None:
        begin = time.perf_counter()
        try:
            found = decide(self.policy, [ask.request for ask in asks])
        except Exception as error:  # noqa: BLE001  raised again by who asked
            if len(asks) == 1:
                asks[0].error = error
                return
            for ask in asks:  # alone: one that cannot be decided does not hurt the others
                self._decide([ask])
            return
        rows = sum(ask.request.rows for ask in asks)
        with self.turn:
            self.calls.append((time.perf_counter() - begin, rows))
            self.decisions += len(asks)
        for ask, one in zip(asks, found, strict=True):
            ask.found = one
