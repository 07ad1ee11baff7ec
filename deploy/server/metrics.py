"""What operators see of a policy server: metrics in Prometheus' text format, and bounded logs.

Format: https://prometheus.io/docs/instrumenting/exposition_formats.
"""

import bisect
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

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


class Histogram:
    """Counts of values by bucket; the caller guards it against several threads.

    Args:
        bounds: Upper bounds of the buckets; one without a bound follows.
    """

    def __init__(self, bounds: Sequence[int] | Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: int | float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def samples(self) -> list["Sample"]:
        """Return it as Prometheus' samples, whose buckets are cumulative."""
        found, total = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            found.append(Sample(total, f'{{le="{bound}"}}', "_bucket"))
        return [*found, Sample(self.sum, suffix="_sum"), Sample(total, suffix="_count")]


class Sample(NamedTuple):
    """One line of a metric."""

    value: int | float
    """Its value."""
    labels: str = ""
    """Its labels, in braces."""
    suffix: str = ""
    """What follows the metric's name."""


class Metric(NamedTuple):
    """A metric."""

    name: str
    """Its name, with the unit."""
    kind: str
    """counter, gauge or histogram."""
    about: str
    """What it counts."""
    samples: Sequence[Sample]
    """Its lines."""


class Counts:
    """What connections count, from several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections = dict.fromkeys(REASONS, 0)
        self.requests = self.errors = 0
        self.seconds = Histogram(SECONDS)

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
        with self.lock:
            self.seconds.observe(seconds)

    @property
    def refused(self) -> int:
        """Refused connections and requests."""
        return self.requests + sum(self.connections.values())

    def metrics(self) -> list[Metric]:
        """Return them."""
        with self.lock:
            reasons = [Sample(n, f'{{reason="{r}"}}') for r, n in self.connections.items()]
            return [
                Metric("mneme_refused_connections_total", "counter", "Refused connections.",
                       reasons),
                Metric("mneme_refused_requests_total", "counter", "Refused requests of clients.",
                       [Sample(self.requests)]),
                Metric("mneme_errors_total", "counter", "Connections ended by a fault of ours.",
                       [Sample(self.errors)]),
                Metric("mneme_decision_seconds", "histogram",
                       "Time from a checked request to its decision, waiting included.",
                       self.seconds.samples()),
            ]  # fmt: skip


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


def text(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    lines = []
    for name, kind, about, samples in metrics:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{one.suffix}{one.labels} {one.value}" for one in samples]
    return "\n".join(lines) + "\n"


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_descriptors(process: int | str = "self") -> int:
    """Return the number of a process's open file descriptors."""
    return len(os.listdir(f"/proc/{process}/fd"))
