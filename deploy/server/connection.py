"""One connection of a policy server: says hello, then asks for health or for decisions."""

import contextlib
import hmac
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deploy.server import sockets, wire
from deploy.server.request import Refused, Request, StateNotHeld
from deploy.server.wire import Closed, FrameReader, Malformed
from vla.contracts import config as configs

if TYPE_CHECKING:
    from deploy.server.server import Server

HELLO_TIMEOUT_S = 5.0
"""How long a connection may be silent before it has said hello."""
POLL_S, LINGER_S = 0.2, 0.2
"""How often a silent connection looks whether the server stops, and how long a client that is told
so may still send, in s."""
STOPS = {
    "ok": False, "reconnect": True,
    "error": "the server stops; hold the arm, and connect again in a moment",
}  # fmt: skip
"""What a client is told by a server that stops."""
Arrays = dict[str, np.ndarray]


class RefusedHello(Refused):
    """A refusal that ends the connection, for one of `metrics.REASONS`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class _StateHandle(NamedTuple):
    """The memory after a decision: sequence number of the request, and tensors by name."""

    sequence: int
    arrays: dict[str, np.ndarray]


class Connection:
    """One connection: says hello, then asks for health or for decisions."""

    def __init__(self, server: "Server", connection: socket.socket) -> None:
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
            user = sockets.foreign_user(self.connection)
            if user is not None:
                self._refuse(
                    "user", f"user {user} asks, expected this server's ({os.geteuid()}) or root; "
                    "run the client as that user, or serve over TCP with a token",
                )  # fmt: skip
                return
            if self.server.tls:
                self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
            self.frames = FrameReader(self.connection, timeout_s)
            while self._wait() and self._answer():
                pass
        except (OSError, Closed) as error:  # closed, silent for too long, or no TLS
            if not self.role and isinstance(error, (TimeoutError, ssl.SSLError)):
                reason = "silent" if isinstance(error, TimeoutError) else "tls"
                self.server.refuse(reason, str(error))
        except Exception:  # noqa: BLE001  logged, and told to nobody else
            self.server.counts.fail()
            self.server.log("error", "a connection ended by an error of the server", trace=True)
        finally:
            if self.server.stops:
                self._say_goodbye()
            self.held = None
            self.server.leave(self)
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # the other side may have been first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _wait(self) -> bool:
        """Wait until bytes of a request have arrived; False if none has and the server stops."""
        silent_s = self.connection.gettimeout() or 0.0
        deadline = time.monotonic() + silent_s
        while not self.frames.has_bytes:
            if self.connection.fileno() < 0:  # hung up
                return False
            poll = select.poll()
            poll.register(self.connection, select.POLLIN)
            stops, left_s = self.server.stops, deadline - time.monotonic()
            if poll.poll(0 if stops else 1e3 * max(0.0, min(POLL_S, left_s))):
                break
            if stops:
                if not self.role:
                    self._refuse_while_draining()
                return False
            if left_s <= 0:
                raise TimeoutError(f"silent for {silent_s:g} s")
        return True

    def _refuse_while_draining(self) -> None:
        """Count a newcomer, whether or not its hello arrived before its connection was seen."""
        self.server.refuse("draining", "the server stops")

    def _say_goodbye(self) -> None:
        """Say that the server stops, and read on for a moment: unread bytes would void it."""
        with contextlib.suppress(OSError):  # it may have ended
            self._send(STOPS)
            # Not a TLS socket's own, which waits for the other side.
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
            self.connection.settimeout(LINGER_S)
            while self.connection.recv(4096):
                pass

    def _refuse(self, reason: str, sentence: str) -> None:
        """Say that the connection is refused."""
        self.server.refuse(reason, sentence)
        with contextlib.suppress(OSError):  # it may be gone
            self._send({"ok": False, "error": sentence})

    def _answer(self) -> bool:
        """Read one frame and answer it; return whether the connection goes on."""
        try:
            say, arrays = self.frames.read(self.server.spec.body_bytes if self.role else 0)
        except Malformed as error:
            sentence = f"no frame: {error}; the connection ends"
            if not self.role:
                self._refuse("frame", sentence)
                return False
            self.server.counts.refuse_request()
            self._send({"ok": False, "error": sentence})
            return False
        try:
            self._count()
            answer, values = self._do(say, arrays)
        except ValueError as error:  # refused here or by the policy
            sentence = " ".join(str(error).split())
            if not self.role:  # before hello there is one try
                self._refuse(error.reason if isinstance(error, RefusedHello) else "hello", sentence)
                return False
            self.server.counts.refuse_request()
            lacks = {"lacks": "memory"} if isinstance(error, StateNotHeld) else {}
            self._send({"ok": False, "error": sentence, **lacks})
            return True
        self._send({"ok": True, **answer}, values)
        return True

    def _do(self, say: dict[str, Any], arrays: Arrays) -> wire.Frame:
        verbs: dict[str, Callable[..., wire.Frame]] = {
            "hello": self._hello, "health": lambda *_: (self.server.health(), {}),
            "act": self._act,
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
            raise RefusedHello("wrong token", "token")
        if say.get("protocol") != wire.PROTOCOL:
            raise RefusedHello(
                f"protocol {say.get('protocol')!r:.20}, this server speaks {wire.PROTOCOL}",
                "protocol",
            )
        if role not in ("control", "watch"):
            raise RefusedHello(f"role {role!r:.20}, expected control or watch", "role")
        if self.server.stops:
            self._refuse_while_draining()
            raise Closed  # then it is told to reconnect
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
        begin = time.perf_counter()
        result = self.server.batcher.act(request, deadline)
        self.server.counts.decide(time.perf_counter() - begin)
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
