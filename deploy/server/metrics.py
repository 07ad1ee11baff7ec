"""What operators see of a policy server: metrics for Prometheus, and bounded logs."""

import logging
import threading
import time
from collections.abc import Sequence

from prometheus_client import Histogram, Metric
from prometheus_client.metrics_core import CounterMetricFamily

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets of a decision's latency, in s."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Upper bounds of the buckets of the rows of a call."""
REASONS = ("user", "tls", "silent", "evicted", "frame", "hello", "token", "protocol", "role",
           "full", "control", "draining")  # fmt: skip
"""Why a connection may be refused."""
LOG_EVERY_S = 10.0
"""Shortest time between two lines of one kind in the log, in s."""
LOG = logging.getLogger("mneme.serve")


class Counts:
    """What connections count, from several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections = dict.fromkeys(REASONS, 0)
        self.requests = self.errors = 0
        self.seconds = histogram(
            "mneme_decision_seconds",
            "Time from a checked request to its decision, waiting included.", SECONDS,
        )  # fmt: skip

    def refuse_connection(self, reason: str) -> None:
        """Count a refused connection by one of `REASONS`."""
        with self.lock:
            self.connections[reason] += 1

    def refuse_request(self) -> None:
        """Count a refused request of a client."""
        with self.lock:
            self.requests += 1

    def fail(self) -> None:
        """Count a connection that ended by a fault of the server."""
        with self.lock:
            self.errors += 1

    def decide(self, seconds: float) -> None:
        """Count the latency of a decision."""
        self.seconds.observe(seconds)

    @property
    def refused(self) -> int:
        """Refused connections and requests."""
        return self.requests + sum(self.connections.values())

    def collect(self) -> list[Metric]:
        """Return them, for Prometheus."""
        refused = CounterMetricFamily(
            "mneme_refused_connections", "Refused connections.", labels=["reason"]
        )
        with self.lock:
            for reason, count in self.connections.items():
                refused.add_metric([reason], count)
            return [
                refused,
                counter("mneme_refused_requests", "Refused requests of clients.", self.requests),
                counter("mneme_errors", "Connections ended by a fault of ours.", self.errors),
                *self.seconds.collect(),
            ]


def histogram(name: str, about: str, bounds: Sequence[int] | Sequence[float]) -> Histogram:
    """Return a histogram of no registry: a process may hold several servers."""
    return Histogram(name, about, buckets=bounds, registry=None)


def counter(name: str, about: str, value: int) -> Metric:
    """Return a counter that is counted elsewhere; the page adds `_total` to its name."""
    return CounterMetricFamily(name, about, value)


class BoundedLog:
    """Logs one line of a kind in `LOG_EVERY_S`, with the number of those it left out before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kinds: dict[str, tuple[float, int]] = {}

    def __call__(self, kind: str, line: str, *, trace: bool = False) -> None:
        """Log a line, with the traceback of the current exception if asked for."""
        now = time.monotonic()
        with self.lock:
            after, left_out = self.kinds.get(kind, (now, 0))
            if now < after:
                self.kinds[kind] = after, left_out + 1
                return
            self.kinds[kind] = now + LOG_EVERY_S, 0
        more = f" ({left_out} more of this kind were not logged)" if left_out else ""
        LOG.warning("%s%s", line, more, exc_info=trace)
