"""Dynamic batching: requests that wait together are decided in one call of the policy."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from deploy.server.metrics import ROWS, BoundedLog, histogram
from deploy.server.request import Refused, Request, decide
from vla.contracts.protocols import ArmPolicy

WINDOW = 1000
"""Latest calls that the statistics cover."""


class _Pending:
    """A waiting request and its result."""

    def __init__(self, request: Request, deadline: float) -> None:
        self.request, self.deadline = request, deadline
        self.result: dict[str, np.ndarray] | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None


class DynamicBatcher:
    """Decides waiting requests together, one call of the policy at a time.

    The first waiting thread runs the batch for all of them (leader and followers): there is no
    thread between a client and the policy.

    Args:
        policy: In evaluation mode.
        max_batch_size: Most rows of a call.
        max_queue_delay_s: How long a call waits for clients that have not asked yet.
        clients: Returns the number of clients that may ask.
    """

    def __init__(
        self, policy: ArmPolicy, *, max_batch_size: int, max_queue_delay_s: float,
        clients: Callable[[], int],
    ) -> None:  # fmt: skip
        self.policy, self.clients = policy, clients
        self.max_batch_size, self.max_queue_delay_s = max_batch_size, max_queue_delay_s
        self.turn = threading.Condition()
        self.waiting: deque[_Pending] = deque()
        self.deciding = False
        self.calls: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.decisions = self.failures = 0
        self.rows = histogram("mneme_call_rows", "Rows of a call of the policy.", ROWS)
        self.log = BoundedLog()

    def act(self, request: Request, deadline: float) -> dict[str, np.ndarray]:
        """Return values f32 [b, k, u] and the new memory of a request's rows.

        Args:
            request: The request.
            deadline: Latest time to begin, by `time.monotonic`.

        Raises:
            Refused: the deadline has passed.
        """
        pending = _Pending(request, deadline)
        with self.turn:
            self.waiting.append(pending)
            self.turn.notify_all()  # a leader may be waiting for this request
        while not pending.done:
            self._lead(pending)
        if pending.result is None:
            assert pending.error is not None
            raise pending.error
        return pending.result

    def stats(self) -> dict[str, Any]:
        """Return decisions so far; seconds and mean rows of the latest calls."""
        with self.turn:
            calls, decisions = list(self.calls), self.decisions
        seconds = [s for s, _ in calls]
        return {
            "decisions": decisions,
            "mean_rows": float(np.mean([rows for _, rows in calls])) if calls else None,
            "p50_s": float(np.median(seconds)) if calls else None,
            "p99_s": float(np.percentile(seconds, 99)) if calls else None,
        }

    def _lead(self, pending: _Pending) -> None:
        """Wait until another thread has decided the request; if none does, decide all waiting."""
        with self.turn:
            self.turn.wait_for(lambda: pending.done or not self.deciding)
            if pending.done:
                return
            self.deciding = True
            if self.max_queue_delay_s:
                self.turn.wait_for(self._is_full, self.max_queue_delay_s)
            batch = self._take()
        try:
            if batch:
                self._decide(batch)
        except BaseException as error:  # noqa: BLE001  a panic in Rust is no Exception
            self.failures += 1
            self.log("call", "a call of the policy failed", trace=True)
            for waiting in batch:
                if not waiting.done:
                    waiting.error = Refused(
                        f"the policy failed ({type(error).__name__}); hold the arm, and begin a "
                        "new episode"
                    )
        finally:
            with self.turn:
                self.deciding = False
                self.turn.notify_all()

    def _is_full(self) -> bool:
        rows = sum(pending.request.rows for pending in self.waiting)
        return rows >= self.max_batch_size or len(self.waiting) >= self.clients()

    def _take(self) -> list[_Pending]:
        """Return the requests of the next call, the longest waiting first."""
        batch: list[_Pending] = []
        rows, now = 0, time.monotonic()
        while self.waiting:
            pending = self.waiting[0]
            alike = not batch or pending.request.arrays.keys() == batch[0].request.arrays.keys()
            if batch and (rows + pending.request.rows > self.max_batch_size or not alike):
                break
            self.waiting.popleft()
            if now > pending.deadline:
                pending.error = Refused(
                    "waited too long for its turn; hold the arm, and observe again, with fewer "
                    "clients or a larger --limits.max-observation-age-s"
                )
                continue
            batch.append(pending)
            rows += pending.request.rows
        return batch

    def _decide(self, batch: list[_Pending]) -> None:
        begin = time.perf_counter()
        rows = sum(pending.request.rows for pending in batch)
        try:
            results = decide(self.policy, [pending.request for pending in batch])
        except Exception as error:  # noqa: BLE001  raised again in the thread of the request
            if len(batch) == 1:
                batch[0].error = error
                return
            for pending in batch:  # each alone: one that fails does not fail the others
                self._decide([pending])
            return
        with self.turn:
            self.calls.append((time.perf_counter() - begin, rows))
            self.decisions += len(batch)
            self.rows.observe(rows)
        for pending, result in zip(batch, results, strict=True):
            pending.result = result
