"""A policy behind a socket: for a robot's computer without the accelerator, or several simulators.

The server keeps nothing of an episode: memory, noise and time travel with every request, as in
`Policy.act`, so no client inherits another's past and a request that is repeated is answered alike.
One client controls at a time; others may watch how the server is. What a client may choose is in
`_Talk`: neither code nor files.
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
from deploy.wire import Closed, Malformed
from vla.contracts import config as configs
from vla.contracts.config import check_least
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation, PolicyState

CLIENTS = 16
"""Most connections at once."""
STRANGER_S = 5.0
"""How long a connection that has not said hello may be silent."""
KEPT = 1000
"""Decisions of which the server knows how long they took."""
LOG = logging.getLogger("mneme.serve")
ARRAYS = ("images", "image_ok", "proprio", "tokens", "slot_time", "slot_count", "noise", "time_s")
"""What a request to act brings."""


class Refused(ValueError):
    """A request that is a frame and may not be done; the connection stays."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may do."""

    rows: int = 64
    """Most arms decided for at once."""
    rate_hz: float = 200.0
    """Most requests per second of one connection, on average over a second."""
    age_s: float = 0.5
    """Oldest observation that is acted on."""
    silent_s: float = 30.0
    """Silence after which a connection is closed, and control with it."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, rows=1)
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
        self.acting, self.state = threading.Lock(), threading.Lock()
        self.controller: _Talk | None = None
        self.talks: set[_Talk] = set()
        self.seconds: deque[float] = deque(maxlen=KEPT)
        self.decisions = self.refused = 0
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
        """Make a client the one that controls.

        Raises:
            Refused: another one does.
        """
        with self.state:
            if self.controller not in (None, talk):
                raise Refused("another client controls; close it, or say hello with role watch")
            self.controller = talk

    def leave(self, talk: "_Talk") -> None:
        """Forget a client, and its control."""
        with self.state:
            self.talks.discard(talk)
            if self.controller is talk:
                self.controller = None

    def health(self) -> dict[str, Any]:
        """Return how the server is; answered while the policy decides, too."""
        seconds = list(self.seconds)
        with self.state:
            clients, controlled = len(self.talks), self.controller is not None
        return {
            "uptime_s": time.monotonic() - self.begun, "decisions": self.decisions,
            "refused": self.refused, "clients": clients, "controlled": controlled,
            "p50_s": float(np.median(seconds)) if seconds else None,
            "p99_s": float(np.percentile(seconds, 99)) if seconds else None,
        }  # fmt: skip

    def act(self, obs: Observation, state: PolicyState, noise: np.ndarray) -> dict[str, np.ndarray]:
        """Decide; one thread at a time."""
        with self.acting:
            begin = time.perf_counter()
            chunk, new = self.policy.act(obs, state, noise)
            self.seconds.append(time.perf_counter() - begin)
            self.decisions += 1
        found = {
            "values": chunk.values, "tokens": new.tokens, "slot_time": new.slot_time,
            "slot_count": new.slot_count,
        }  # fmt: skip
        return {name: np.asarray(value, np.float32) for name, value in found.items()}


class _Talk:
    """One connection: says hello, then asks for health or for decisions."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server, self.connection = server, connection
        self.role = ""
        self.last = -1
        self.task: tuple[str, ...] = ()
        self.times: deque[float] = deque()

    def run(self) -> None:
        """Answer requests until either side hangs up."""
        try:
            # Who does not finish a frame holds up nobody but itself, and not for ever.
            self.connection.settimeout(min(STRANGER_S, self.server.limits.silent_s))
            if self.server.tls:
                self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
            while self._answer():
                pass
        except (OSError, Closed):
            pass  # gone, silent for too long, or no TLS
        except Exception:
            LOG.exception("a connection ended by our own fault")
        finally:
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
            say, arrays = wire.unpack(self._receive, wire.BODY_BYTES if self.role else 0)
        except Malformed as error:
            self.server.refused += 1
            self._send({"ok": False, "error": f"no frame: {error}; the connection ends"})
            return False
        try:
            self._count()
            told, given = self._do(say, arrays)
        except Refused as error:
            self.server.refused += 1
            self._send({"ok": False, "error": str(error)})
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
        policy = self.server.policy
        return {
            "robot": configs.to_json(policy.robot), "execute": policy.execute,
            "noise_shape": list(policy.noise_shape), "about": self.server.about,
        }, {
            name: np.asarray(value, np.float32)
            for name, value in _parts(policy.initial_state(1)).items()
        }  # fmt: skip

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
        obs, state, noise = self._observation(task, arrays)
        found = self.server.act(obs, state, noise)
        self.task = obs.task
        return {"sequence": sequence}, found

    def _observation(
        self, task: Any, arrays: dict[str, np.ndarray]
    ) -> tuple[Observation, PolicyState, np.ndarray]:
        missing = sorted(set(ARRAYS) ^ set(arrays))
        if missing:
            raise Refused(f"array {missing[0]!r:.40} is missing or unknown; expected {ARRAYS}")
        words = isinstance(task, list) and all(isinstance(t, str) and len(t) < 1000 for t in task)
        rows = len(task) if words else 0
        if not 1 <= rows <= self.server.limits.rows:
            raise Refused(
                f"task: expected 1 to {self.server.limits.rows} instructions of less than 1000 "
                "characters, one for each row"
            )
        policy, start = self.server.policy, self.server.policy.initial_state(rows)
        channels, cameras = len(policy.robot.channels), len(policy.robot.cameras)
        camera = policy.robot.cameras[0]
        expected = {
            "images": ("uint8", (rows, cameras, camera.height_px, camera.width_px, 3)),
            "image_ok": ("bool", (rows, cameras)), "proprio": ("float32", (rows, channels)),
            **{n: ("float32", np.shape(v)) for n, v in _parts(start).items()},
            "noise": ("float32", (rows, *policy.noise_shape)), "time_s": ("float64", (rows,)),
        }  # fmt: skip
        for name, (dtype, shape) in expected.items():
            got = arrays[name]
            if (got.dtype.name, got.shape) != (dtype, tuple(shape)):
                raise Refused(f"{name}: got {got.dtype} {got.shape}, expected {dtype} {shape}")
            if got.dtype.kind == "f" and not np.isfinite(got).all():
                raise Refused(f"{name}: is not finite; hold the arm, and observe anew")
        time_s = arrays["time_s"]
        if (time_s < 0).any():
            raise Refused("time_s: is below 0; it counts from the first observation of an episode")
        changed = [i for i, t in enumerate(task) if self.task[i : i + 1] not in ((), (t,))]
        if any(time_s[i] != 0 for i in changed):
            raise Refused("another task in the middle of an episode; begin a new one, at time_s 0")
        obs = Observation(
            images=arrays["images"], image_ok=arrays["image_ok"], proprio=arrays["proprio"],
            task=tuple(task), time_s=time_s,
        )  # fmt: skip
        state = PolicyState(
            tokens=arrays["tokens"], slot_time=arrays["slot_time"], slot_count=arrays["slot_count"]
        )
        return obs, state, arrays["noise"]

    def _count(self) -> None:
        """Raise Refused where a connection asks too often."""
        now, rate = time.monotonic(), self.server.limits.rate_hz
        self.times.append(now)
        while self.times and now - self.times[0] > 1.0:
            self.times.popleft()
        if len(self.times) > rate:
            raise Refused(f"more than {rate:g} requests in a second; ask less often")

    def _receive(self, size: int) -> bytearray:
        return wire.exactly(self.connection, size)

    def _send(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        self.connection.sendall(wire.pack(say, arrays))


def _parts(state: PolicyState) -> dict[str, Any]:
    return {
        "tokens": state.tokens, "slot_time": state.slot_time, "slot_count": state.slot_count
    }  # fmt: skip


def listen(at: str, token: str, tls: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        at: "unix:PATH", or "HOST:PORT"; port 0 is a free one.
        token: What clients must know.
        tls: Whether connections are encrypted.

    Raises:
        ValueError: the address makes no sense, or others than this machine could reach it and there
            is no token or no TLS.
    """
    if at.startswith("unix:"):
        path = Path(at.removeprefix("unix:"))
        if path.exists() and not path.is_socket():
            raise ValueError(f"{path}: is there and no socket; give another --at")
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


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; no name but localhost is taken for one."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
