"""A policy behind a socket: for a robot's computer without the accelerator, or several simulators.

Memory, noise and time are arguments of every request, as in `Policy.act`. Of an episode a
connection keeps one thing, the memory after its last decision, so that the next request can name
it instead of bringing it: by that request's number, and on this connection alone, so no client
inherits another's past. As many clients control as the limits say; others may watch how the server
is. What a client may choose is in `_Talk` and `deploy.request`: neither code nor files.
"""

import contextlib
import hmac
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy import wire
from deploy.gather import Gatherer
from deploy.request import Form, Lacking, Refused, Request, memory
from deploy.wire import Closed, Inbox, Malformed
from vla.contracts import config as configs
from vla.contracts.config import check_least
from vla.contracts.protocols import ArmPolicy

CLIENTS = 16
"""Most connections at once."""
STRANGER_S = 5.0
"""How long a connection that has not said hello may be silent."""
LOG = logging.getLogger("mneme.serve")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may do."""

    rows: int = 64
    """Most arms decided for at once, of all clients together."""
    controllers: int = 1
    """Most clients that act, each on arms of its own; what waits at once is decided at once."""
    gather_ms: float = 0.0
    """How long a decision waits for other clients that act to ask as well."""
    rate_hz: float = 200.0
    """Most requests per second of one connection, on average over a second."""
    age_s: float = 0.5
    """Oldest observation that is acted on."""
    silent_s: float = 30.0
    """Silence after which a connection is closed, and control with it; a request that takes longer
    to arrive ends it, too."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, rows=1, controllers=1)
        if not 0 <= self.gather_ms <= 1000:
            raise ValueError(f"gather_ms: got {self.gather_ms}, expected 0 to 1000")
        for name in ("rate_hz", "age_s", "silent_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")


class Server:
    """Serves one policy until it is closed. A context manager.

    Args:
        policy: In evaluation mode; called by one thread at a time.
        listener: A bound and listening socket.
        token: What clients must know; empty where the socket itself keeps others out.
        tls: Wraps connections.
        limits: What clients may do.
        about: What else a client that says hello is told.
    """

    def __init__(
        self, policy: ArmPolicy, listener: socket.socket, *, token: str = "",
        tls: ssl.SSLContext | None = None, limits: Limits | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.policy, self.listener, self.token, self.tls = policy, listener, token, tls
        self.limits, self.about = limits or Limits(), about or {}
        self.form = Form(policy, self.limits.rows)
        self.start = memory(policy.initial_state(1))
        self.gatherer = Gatherer(
            policy, rows=self.limits.rows, gather_s=1e-3 * self.limits.gather_ms,
            clients=lambda: len(self.controllers),
        )  # fmt: skip
        self.state = threading.Lock()
        self.controllers: set[_Talk] = set()
        self.talks: set[_Talk] = set()
        self.refused = 0
        self.begun = time.monotonic()
        self.over = threading.Event()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and stop listening; calling it twice does no harm."""
        self.over.set()
        self.listener.close()
        with self.state:
            talks = list(self.talks)
        for talk in talks:
            talk.hang_up()

    def serve(self) -> None:
        """Accept connections until the server is closed."""
        self.listener.settimeout(0.2)
        while not self.over.is_set():
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                continue
            except OSError:
                break  # closed
            with self.state:
                full = len(self.talks) >= CLIENTS
            if full:
                connection.close()
                continue
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = _Talk(self, connection)
            with self.state:
                self.talks.add(talk)
            threading.Thread(target=talk.run, daemon=True).start()

    def take_control(self, talk: "_Talk") -> None:
        """Make a client one that controls.

        Raises:
            Refused: as many others do as may.
        """
        with self.state:
            if len(self.controllers) >= self.limits.controllers:
                raise Refused(
                    "another client controls; close it, or say hello with role watch (or serve "
                    f"with --limits.controllers {len(self.controllers) + 1})"
                )
            self.controllers.add(talk)

    def leave(self, talk: "_Talk") -> None:
        """Forget a client, and its control."""
        with self.state:
            self.talks.discard(talk)
            self.controllers.discard(talk)

    def health(self) -> dict[str, Any]:
        """Return how the server is; answered while the policy decides, too."""
        with self.state:
            clients, controllers = len(self.talks), len(self.controllers)
        return {
            "uptime_s": time.monotonic() - self.begun, "refused": self.refused, "clients": clients,
            "controllers": controllers, "controlled": controllers > 0,
            "target": self.about.get("target"), **self.gatherer.told(),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The memory after a decision of one connection."""

    sequence: int
    """The request that was decided."""
    arrays: dict[str, np.ndarray]
    """As its answer has them, by name."""


class _Talk:
    """One connection: says hello, then asks for health or for decisions."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server, self.connection = server, connection
        self.inbox = Inbox(connection)
        self.role = ""
        self.last = -1
        self.task: tuple[str, ...] = ()
        self.kept: _Kept | None = None
        self.times: deque[float] = deque()

    def run(self) -> None:
        """Answer requests until either side hangs up."""
        try:
            # Who does not finish a frame holds up nobody but itself, and not for ever.
            patience_s = min(STRANGER_S, self.server.limits.silent_s)
            self.connection.settimeout(patience_s)
            if self.server.tls:
                self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
            self.inbox = Inbox(self.connection, patience_s)
            while self._answer():
                pass
        except (OSError, Closed):
            pass  # gone, silent for too long, or no TLS
        except Exception:
            LOG.exception("a connection ended by our own fault")
        finally:
            self.kept = None
            self.server.leave(self)
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # the other side may have been first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _answer(self) -> bool:
        """Read one frame and answer it; False where nothing may follow."""
        try:
            say, arrays = self.inbox.frame(self.server.form.body_bytes if self.role else 0)
        except Malformed as error:
            self.server.refused += 1
            self._send({"ok": False, "error": f"no frame: {error}; the connection ends"})
            return False
        try:
            self._count()
            told, given = self._do(say, arrays)
        except Refused as error:
            self.server.refused += 1
            lacks = {"lacks": "memory"} if isinstance(error, Lacking) else {}
            self._send({"ok": False, "error": str(error), **lacks})
            return bool(self.role)  # a stranger gets one try
        except ValueError as error:  # the policy's own words for what does not fit it
            self.server.refused += 1
            self._send({"ok": False, "error": " ".join(str(error).split())})
            return bool(self.role)
        self._send({"ok": True, **told}, given)
        return True

    def _do(
        self, say: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        verbs: dict[str, Callable[..., tuple[dict[str, Any], dict[str, np.ndarray]]]] = {
            "hello": self._hello, "health": self._health, "act": self._act,
        }  # fmt: skip
        verb = say.get("do")
        if not isinstance(verb, str) or verb not in verbs:
            raise Refused(f"do {verb!r:.40}; this server does {', '.join(verbs)}")
        if not self.role and verb != "hello":
            raise Refused("say hello first")
        return verbs[verb](say, arrays)

    def _hello(
        self, say: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if self.role:  # who controls would go on to, whatever role it took next
            raise Refused("has said hello already; connect anew for another role")
        token, role = say.get("token", ""), say.get("role")
        # In constant time: how long a refusal takes tells nothing of the token.
        known = isinstance(token, str) and hmac.compare_digest(
            token.encode(), self.server.token.encode()
        )
        if not known:
            raise Refused("wrong token")
        if say.get("protocol") != wire.PROTOCOL:
            raise Refused(
                f"protocol {say.get('protocol')!r:.20}, this server speaks {wire.PROTOCOL}"
            )
        if role not in ("control", "watch"):
            raise Refused(f"role {role!r:.20}, expected control or watch")
        if role == "control":
            self.server.take_control(self)
        self.role = role
        self.connection.settimeout(self.server.limits.silent_s)
        self.inbox.frame_s = self.server.limits.silent_s
        policy = self.server.policy
        return {
            "robot": configs.to_json(policy.robot), "execute": policy.execute,
            "noise_shape": list(policy.noise_shape), "prefix": policy.prefix,
            "about": self.server.about,
        }, self.server.start  # fmt: skip

    def _health(
        self, say: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return self.server.health(), {}

    def _act(
        self, say: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if self.role != "control":
            raise Refused("a client that watches does not act; say hello with role control")
        sequence, task = say.get("sequence"), say.get("task")
        if type(sequence) is not int or sequence <= self.last:
            raise Refused(f"sequence {sequence!r:.20} after {self.last}; count up")
        self.last = sequence
        age = say.get("age_s")
        if not isinstance(age, (int, float)) or not 0 <= age <= self.server.limits.age_s:
            raise Refused(
                f"an observation {age!r:.20} s old, at most {self.server.limits.age_s} s; hold the "
                "arm, and observe anew"
            )
        late = time.monotonic() + self.server.limits.age_s - age
        request = self.server.form.read(task, arrays, self._named(say))
        self._same_task(request)
        # Gone while it is decided: if that goes wrong, nothing is left that could be half changed.
        self.kept = None
        found = self.server.gatherer.act(request, late)
        self.kept = _Kept(
            sequence=sequence, arrays={n: v for n, v in found.items() if n in self.server.start}
        )
        self.task = request.task
        return {"sequence": sequence}, found

    def _named(self, say: dict[str, Any]) -> dict[str, np.ndarray] | None:
        """Return the memory that a request goes on from without bringing it, None if it brings it.

        Raises:
            Lacking: it is not the one that is kept.
        """
        if "continues" not in say:
            return None
        sequence = say["continues"]
        if self.kept is None or type(sequence) is not int or sequence != self.kept.sequence:
            raise Lacking(
                f"the memory after request {sequence!r:.20} is not kept here; send it whole"
            )
        return self.kept.arrays

    def _same_task(self, request: Request) -> None:
        """Raise Refused where a row has another task in the middle of an episode."""
        time_s = request.arrays["time_s"]
        rows = zip(request.task, self.task, strict=False)
        if any(one != before and time_s[i] != 0 for i, (one, before) in enumerate(rows)):
            raise Refused("another task in the middle of an episode; begin a new one, at time_s 0")

    def _count(self) -> None:
        """Raise Refused where a connection asks too often."""
        now, rate = time.monotonic(), self.server.limits.rate_hz
        self.times.append(now)
        while self.times and now - self.times[0] > 1.0:
            self.times.popleft()
        if len(self.times) > rate:
            raise Refused(f"more than {rate:g} requests in a second; ask less often")

    def _send(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        wire.send(self.connection, wire.parts(say, arrays))


def listen(at: str, token: str, tls: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        at: "unix:PATH", or "HOST:PORT"; port 0 is a free one.
        token: What clients must know.
        tls: Whether connections are encrypted.

    Raises:
        ValueError: the address makes no sense, or others than this machine could reach it and there
            is no token or no TLS, or another server listens there.
    """
    if at.startswith("unix:"):
        path = Path(at.removeprefix("unix:"))
        if path.exists() and not path.is_socket():
            raise ValueError(f"{path}: is there and no socket; give another --at")
        if _somebody_listens(path):
            raise ValueError(f"{path}: another server listens there; stop it, or give another --at")
        path.unlink(missing_ok=True)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.bind(str(path))
        path.chmod(0o600)  # its owner alone
    else:
        host, _, port = at.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"at: got {at!r}, expected unix:PATH or HOST:PORT")
        if not is_loopback(host) and not (token and tls):
            raise ValueError(
                f"at: {host} can be reached from elsewhere, which needs --token-file and "
                "--certificate with --key; or serve at 127.0.0.1 or unix:PATH"
            )
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), int(port)))
    found.listen(CLIENTS)
    return found


def _somebody_listens(path: Path) -> bool:
    """Whether a server answers at a Unix socket, or may; not at one that a dead server left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose queue is full would keep us waiting
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # its queue is full, or it is not ours to ask
            return True
    return True


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; no name but localhost is taken for one."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
