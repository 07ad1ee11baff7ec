"""A policy behind a socket: for a robot's computer without the accelerator, or several simulators.

Memory, noise and time are arguments of every request, as in `Policy.act`. A connection holds the
memory after its last decision, so that the next request on the same connection can name it by that
request's sequence number instead of sending it. `Limits` bound how many clients act; others may
watch the server's health. A client can choose neither code nor files.
"""

import math
import socket
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily

from deploy.server import sockets
from deploy.server.connection import Connection, RefusedHello
from deploy.server.dynamic_batcher import DynamicBatcher
from deploy.server.metrics import BoundedLog, Counts, counter
from deploy.server.request import RequestSpec, memory
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy

CLIENTS, STRANGERS = 16, 64
"""Most connections at once that have said hello, and that have not: strangers shut nobody out."""
ACCEPT_PAUSE_S = 0.2
"""Pause after the system refused a connection, as it does without free descriptors."""
POLL_S = 0.2
"""How often the loop that accepts connections looks whether the server stops, in s."""
ALIVE_S = 5.0
"""Longest turn of the loop that accepts connections."""
RELEASE_S = 1.0
"""How long a hello waits for control: a client that closes and connects anew at once gets it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of clients, and dynamic batching."""

    max_batch_size: int = 64
    """Most rows (arms) of one call of the policy, of all clients together."""
    max_clients: int = 1
    """Most clients that act, each on arms of its own."""
    max_queue_delay_ms: float = 0.0
    """How long a call waits for the other acting clients' requests, in ms."""
    max_request_rate_hz: float = 200.0
    """Most requests per second of one connection, counted over a second."""
    max_observation_age_s: float = 0.5
    """Oldest observation that is acted on, in s."""
    idle_timeout_s: float = 30.0
    """Silence after which a connection is closed and its control released, in s; also the longest
    time that a request may take to arrive."""
    drain_timeout_s: float = 5.0
    """How long decisions in flight may take once the server was told to stop, in s."""

    def __post_init__(self) -> None:
        validate_min(self, max_batch_size=1, max_clients=1)
        if not 0 <= self.max_queue_delay_ms <= 1000:
            raise ValueError(
                f"max_queue_delay_ms: got {self.max_queue_delay_ms}, expected 0 to 1000"
            )
        for name in (
            "max_request_rate_hz", "max_observation_age_s", "idle_timeout_s", "drain_timeout_s",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")


class Server:
    """Serves one policy until it is closed. A context manager.

    Args:
        policy: In evaluation mode; called by one thread at a time.
        listener: A bound and listening socket.
        token: Token of clients; empty if the socket itself keeps others out.
        tls: Wraps connections.
        limits: Limits of clients.
        about: Further facts for clients that say hello.
    """

    def __init__(
        self, policy: ArmPolicy, listener: socket.socket, *, token: str = "",
        tls: ssl.SSLContext | None = None, limits: Limits | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.policy, self.listener, self.token, self.tls = policy, listener, token, tls
        listener.settimeout(POLL_S)
        self.limits, self.about = limits or Limits(), about or {}
        self.spec = RequestSpec(policy, self.limits.max_batch_size)
        self.start = memory(policy.initial_state(1))
        self.batcher = DynamicBatcher(
            policy, max_batch_size=self.limits.max_batch_size,
            max_queue_delay_s=1e-3 * self.limits.max_queue_delay_ms,
            clients=lambda: len(self.acting),
        )  # fmt: skip
        self.state = threading.Condition()
        self.acting: set[Connection] = set()
        self.connections: set[Connection] = set()
        self.counts, self.log = Counts(), BoundedLog()
        self.process = ProcessCollector(registry=None)
        self.begin = self.turned_s = time.monotonic()
        self.stops = 0
        self.stopped = threading.Event()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and stop listening; calling it twice does no harm."""
        self.stopped.set()
        self.listener.close()
        with self.state:
            connections = list(self.connections)
        for connection in connections:
            connection.hang_up()

    def stop(self) -> None:
        """Let `serve` return once what was asked is answered; a second call, at once.

        A signal handler may call it: it takes no lock.
        """
        self.stops += 1

    def serve(self) -> None:
        """Accept connections until the server is closed or stopped."""
        deadline = math.inf
        while not self.stopped.is_set():
            self.turned_s = time.monotonic()
            if self.stops and deadline == math.inf:
                deadline = self.turned_s + self.limits.drain_timeout_s
            if self.stops > 1 or self.turned_s > deadline or (self.stops and not self.connections):
                break
            self._accept()
        self.stopped.set()

    def _accept(self) -> None:
        """Accept a connection, if one comes."""
        try:
            connection, _ = self.listener.accept()
        except TimeoutError:
            return
        except OSError as error:
            if not self.stopped.is_set() and self.listener.fileno() < 0:
                self.stopped.set()
            elif not self.stopped.is_set():
                self.log("accept", f"no connection can be accepted: {error}")
                self.stopped.wait(ACCEPT_PAUSE_S)
            return
        with self.state:
            strangers = [one for one in self.connections if not one.role]
        if len(strangers) >= STRANGERS:  # whoever knows the token says it at once
            oldest = min(strangers, key=lambda one: one.begin_s)
            self.refuse("evicted", f"more than {STRANGERS} connections have not said hello")
            self.leave(oldest)  # its thread ends a moment later
            oldest.hang_up()
        sockets.set_options(connection)
        client = Connection(self, connection)
        with self.state:
            self.connections.add(client)
        threading.Thread(target=client.run, daemon=True).start()

    def refuse(self, reason: str, sentence: str) -> None:
        """Count and log a refused connection."""
        self.counts.refuse_connection(reason)
        self.log(reason, f"refused a connection ({reason}): {sentence}")

    def take_control(self, client: "Connection") -> None:
        """Let a client act, at once or when another leaves within a moment.

        Raises:
            Refused: as many clients act as may.
        """
        with self.state:
            self.state.wait_for(self._has_room, RELEASE_S)
            if not self._has_room():
                raise RefusedHello(
                    "another client controls; close it, or say hello with role watch (or serve "
                    f"with --limits.max-clients {len(self.acting) + 1})", "control",
                )  # fmt: skip
            self.acting.add(client)

    def _has_room(self) -> bool:
        return len(self.acting) < self.limits.max_clients

    def admit(self, client: "Connection") -> None:
        """Raise Refused if too many clients have said hello."""
        with self.state:
            if sum(bool(one.role) for one in self.connections - {client}) >= CLIENTS:
                raise RefusedHello(f"{CLIENTS} clients are connected already; close one", "full")

    def leave(self, client: "Connection") -> None:
        """Forget a client and release its control."""
        with self.state:
            self.connections.discard(client)
            self.acting.discard(client)
            self.state.notify_all()

    def health(self) -> dict[str, Any]:
        """Return the state of the server; answered while the policy decides, too."""
        with self.state:
            clients, acting = len(self.connections), len(self.acting)
        return {
            "uptime_s": time.monotonic() - self.begin, "refused": self.counts.refused,
            "clients": clients, "acting_clients": acting, "target": self.about.get("target"),
            **self.batcher.stats(),
        }  # fmt: skip

    @property
    def is_alive(self) -> bool:
        """Whether it accepts connections."""
        return not self.stopped.is_set() and time.monotonic() - self.turned_s < ALIVE_S

    @property
    def is_ready(self) -> bool:
        """Whether a client may say hello."""
        return self.is_alive and not self.stops

    def collect(self) -> list[Metric]:
        """Return what Prometheus reads."""
        with self.state:
            roles = Counter(one.role or "stranger" for one in self.connections)
        batcher = self.batcher
        with batcher.turn:
            decisions, queue, failures = batcher.decisions, len(batcher.waiting), batcher.failures
        connections = GaugeMetricFamily("mneme_connections", "Connections.", labels=["role"])
        for role in ("control", "watch", "stranger"):
            connections.add_metric([role], roles[role])
        return [
            counter("mneme_decisions", "Decided requests.", decisions),
            counter("mneme_failed_calls", "Calls that the policy did not survive.", failures),
            *self.counts.collect(),
            *batcher.rows.collect(),
            GaugeMetricFamily("mneme_queue_requests", "Requests that wait.", queue),
            connections,
            GaugeMetricFamily("mneme_ready", "1 if a client may say hello.", int(self.is_ready)),
            *self.process.collect(),
        ]
