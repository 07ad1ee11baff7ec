"""A policy behind a socket: for a robot's computer without the accelerator, or several simulators.

Memory, noise and time are arguments of every request, as in `Policy.act`. A connection holds the
memory after its last decision, so that the next request on the same connection can name it by that
request's sequence number instead of sending it. `Limits` bound how many clients act; others may
watch the server's health. A client can choose neither code nor files.
"""

import contextlib
import hmac
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deploy.server import wire
from deploy.server.dynamic_batcher import DynamicBatcher
from deploy.server.request import Refused, Request, RequestSpec, StateNotHeld, memory
from deploy.server.wire import Closed, FrameReader, Malformed
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy

CLIENTS, STRANGERS = 16, 64
"""Most connections at once that have said hello, and that have not: strangers shut nobody out."""
ACCEPT_PAUSE_S = 0.2
"""Pause after the system refused a connection, as it does without free descriptors."""
HELLO_TIMEOUT_S = 5.0
"""How long a connection may be silent before it has said hello."""
Arrays = dict[str, np.ndarray]
LOG = logging.getLogger("mneme.serve")


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

    def __post_init__(self) -> None:
        validate_min(self, max_batch_size=1, max_clients=1)
        if not 0 <= self.max_queue_delay_ms <= 1000:
            raise ValueError(
                f"max_queue_delay_ms: got {self.max_queue_delay_ms}, expected 0 to 1000"
            )
        for name in ("max_request_rate_hz", "max_observation_age_s", "idle_timeout_s"):
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
        self.limits, self.about = limits or Limits(), about or {}
        self.spec = RequestSpec(policy, self.limits.max_batch_size)
        self.start = memory(policy.initial_state(1))
        self.batcher = DynamicBatcher(
            policy, max_batch_size=self.limits.max_batch_size,
            max_queue_delay_s=1e-3 * self.limits.max_queue_delay_ms,
            clients=lambda: len(self.acting),
        )  # fmt: skip
        self.state = threading.Lock()
        self.acting: set[_Connection] = set()
        self.connections: set[_Connection] = set()
        self.refused = 0
        self.begin = time.monotonic()
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

    def serve(self) -> None:
        """Accept connections until the server is closed."""
        self.listener.settimeout(0.2)
        while not self.stopped.is_set():
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self.stopped.is_set() or self.listener.fileno() < 0:
                    break
                LOG.error("no connection can be accepted: %s", error)
                self.stopped.wait(ACCEPT_PAUSE_S)
                continue
            with self.state:
                strangers = [one for one in self.connections if not one.role]
            if len(strangers) >= STRANGERS:  # whoever knows the token says it at once
                oldest = min(strangers, key=lambda one: one.begin_s)
                self.leave(oldest)  # its thread ends a moment later
                oldest.hang_up()
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Connection(self, connection)
            with self.state:
                self.connections.add(client)
            threading.Thread(target=client.run, daemon=True).start()

    def take_control(self, client: "_Connection") -> None:
        """Let a client act.

        Raises:
            Refused: as many clients act as may.
        """
        with self.state:
            if len(self.acting) >= self.limits.max_clients:
                raise Refused(
                    "another client controls; close it, or say hello with role watch (or serve "
                    f"with --limits.max-clients {len(self.acting) + 1})"
                )
            self.acting.add(client)

    def admit(self, client: "_Connection") -> None:
        """Raise Refused if too many clients have said hello."""
        with self.state:
            if sum(bool(one.role) for one in self.connections - {client}) >= CLIENTS:
                raise Refused(f"{CLIENTS} clients are connected already; close one")

    def leave(self, client: "_Connection") -> None:
        """Forget a client and release its control."""
        with self.state:
            self.connections.discard(client)
            self.acting.discard(client)

    def health(self) -> dict[str, Any]:
        """Return the state of the server; answered while the policy decides, too."""
        with self.state:
            clients, acting = len(self.connections), len(self.acting)
        return {
            "uptime_s": time.monotonic() - self.begin, "refused": self.refused, "clients": clients,
            "acting_clients": acting, "target": self.about.get("target"), **self.batcher.stats(),
        }  # fmt: skip


class _StateHandle(NamedTuple):
    """The memory after a decision: sequence number of the request, and tensors by name."""

    sequence: int
    arrays: dict[str, np.ndarray]


class _Connection:
    """One connection: says hello, then asks for health or for decisions."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server, self.connection = server, connection
        self.frames = FrameReader(connection)
        self.role, self.begin_s = "", time.monotonic()
        self.last = -1
        self.task: tuple[str, ...] = ()
        self.held: _StateHandle | None = None
        self.times: deque[float] = deque()

    def run(self) -> None:
        """Answer requests until either side hangs up."""
        try:
            # A client that does not finish a frame blocks its own thread alone, and not for ever.
            timeout_s = min(HELLO_TIMEOUT_S, self.server.limits.idle_timeout_s)
            self.connection.settimeout(timeout_s)
            if self.server.tls:
                self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
            self.frames = FrameReader(self.connection, timeout_s)
            while self._answer():
                pass
        except (OSError, Closed):
            pass  # closed, silent for too long, or no TLS
        except Exception:
            LOG.exception("a connection ended by an error of the server")
        finally:
            self.held = None
            self.server.leave(self)
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # the other side may have been first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _answer(self) -> bool:
        """Read one frame and answer it; return whether the connection goes on."""
        try:
            say, arrays = self.frames.read(self.server.spec.body_bytes if self.role else 0)
        except Malformed as error:
            self.server.refused += 1
            self._send({"ok": False, "error": f"no frame: {error}; the connection ends"})
            return False
        try:
            self._count()
            answer, values = self._do(say, arrays)
        except ValueError as error:  # refused here or by the policy
            self.server.refused += 1
            lacks = {"lacks": "memory"} if isinstance(error, StateNotHeld) else {}
            self._send({"ok": False, "error": " ".join(str(error).split()), **lacks})
            return bool(self.role)  # before hello there is one try
        self._send({"ok": True, **answer}, values)
        return True

    def _do(self, say: dict[str, Any], arrays: Arrays) -> wire.Frame:
        verbs: dict[str, Callable[..., wire.Frame]] = {
            "hello": self._hello, "health": self._health, "act": self._act,
        }  # fmt: skip
        verb = say.get("do")
        if not isinstance(verb, str) or verb not in verbs:
            raise Refused(f"do {verb!r:.40}; this server does {', '.join(verbs)}")
        if not self.role and verb != "hello":
            raise Refused("say hello first")
        return verbs[verb](say, arrays)

    def _hello(self, say: dict[str, Any], arrays: Arrays) -> wire.Frame:
        if self.role:  # a client that acts would keep control under another role
            raise Refused("has said hello already; connect again for another role")
        token, role = say.get("token", ""), say.get("role")
        # In constant time: the delay of a refusal reveals nothing of the token.
        valid = isinstance(token, str) and hmac.compare_digest(
            token.encode(), self.server.token.encode()
        )
        if not valid:
            raise Refused("wrong token")
        if say.get("protocol") != wire.PROTOCOL:
            raise Refused(
                f"protocol {say.get('protocol')!r:.20}, this server speaks {wire.PROTOCOL}"
            )
        if role not in ("control", "watch"):
            raise Refused(f"role {role!r:.20}, expected control or watch")
        self.server.admit(self)
        if role == "control":
            self.server.take_control(self)
        self.role = role
        self.connection.settimeout(self.server.limits.idle_timeout_s)
        self.frames.frame_s = self.server.limits.idle_timeout_s
        policy = self.server.policy
        return {
            "robot": configs.to_json(policy.robot), "n_action_steps": policy.n_action_steps,
            "noise_shape": list(policy.noise_shape), "max_prefix_len": policy.max_prefix_len,
            "remembers": policy.remembers, "about": self.server.about,
        }, self.server.start  # fmt: skip

    def _health(self, say: dict[str, Any], arrays: Arrays) -> wire.Frame:
        return self.server.health(), {}

    def _act(self, say: dict[str, Any], arrays: Arrays) -> wire.Frame:
        if self.role != "control":
            raise Refused("a client that watches does not act; say hello with role control")
        sequence, task = say.get("sequence"), say.get("task")
        if type(sequence) is not int or sequence <= self.last:
            raise Refused(f"sequence {sequence!r:.20} after {self.last}; count up")
        self.last = sequence
        age, limit_s = say.get("age_s"), self.server.limits.max_observation_age_s
        if not isinstance(age, (int, float)) or not 0 <= age <= limit_s:
            raise Refused(
                f"an observation {age!r:.20} s old, at most {limit_s} s; hold the arm, and observe "
                "again"
            )
        deadline = time.monotonic() + limit_s - age
        request = self.server.spec.read(task, arrays, self._named(say))
        self._same_task(request)
        # Dropped first: after a failed decision no memory can be named.
        self.held = None
        result = self.server.batcher.act(request, deadline)
        for name, value in result.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise Refused(
                    f"the policy's {name} is not finite; hold the arm, begin a new episode"
                )
        self.held = _StateHandle(
            sequence=sequence, arrays={n: v for n, v in result.items() if n in self.server.start}
        )
        self.task = request.task
        return {"sequence": sequence}, result

    def _named(self, say: dict[str, Any]) -> dict[str, np.ndarray] | None:
        """Return the memory that a request names, None if it brings its own."""
        if "continues" not in say:
            return None
        sequence = say["continues"]
        if self.held is None or type(sequence) is not int or sequence != self.held.sequence:
            raise StateNotHeld(
                f"the memory after request {sequence!r:.20} is not held here; send it whole"
            )
        return self.held.arrays

    def _same_task(self, request: Request) -> None:
        """Raise Refused if a row has another task in the middle of an episode."""
        time_s = request.arrays["time_s"]
        rows = zip(request.task, self.task, strict=False)
        if any(task != last and time_s[i] != 0 for i, (task, last) in enumerate(rows)):
            raise Refused("another task in the middle of an episode; begin a new one, at time_s 0")

    def _count(self) -> None:
        """Raise Refused if a connection asks too often."""
        now, rate = time.monotonic(), self.server.limits.max_request_rate_hz
        self.times.append(now)
        while self.times and now - self.times[0] > 1.0:
            self.times.popleft()
        if len(self.times) > rate:
            raise Refused(f"more than {rate:g} requests in a second; ask less often")

    def _send(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        wire.send(self.connection, wire.parts(say, arrays))


def listen(address: str, token: str, tls: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        address: "unix:PATH", or "HOST:PORT"; port 0 is a free one.
        token: Token of clients.
        tls: Whether connections are encrypted.

    Raises:
        ValueError: the address is malformed, or other machines can reach it and there is no token
            or no TLS, or another server listens there.
    """
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if path.exists() and not path.is_socket():
            raise ValueError(f"{path}: is there and no socket; give another --address")
        if _is_listening(path):
            raise ValueError(
                f"{path}: another server listens there; stop it, or give another --address"
            )
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)  # the owner alone
    else:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"address: got {address!r}, expected unix:PATH or HOST:PORT")
        if not wire.is_loopback(host) and not (token and tls):
            raise ValueError(
                f"address: {host} can be reached from elsewhere, which needs --token-file and "
                "--certificate with --key; or serve at 127.0.0.1 or unix:PATH"
            )
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
    listener.listen(STRANGERS)
    return listener


def _is_listening(path: Path) -> bool:
    """Whether a server answers at a Unix socket, or may; False if a dead server left it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue would block
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # its queue is full, or its permissions deny us
            return True
    return True
