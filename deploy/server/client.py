"""A remote policy: asks a server for every decision. Needs numpy alone.

It satisfies `vla.contracts.protocols.ArmPolicy`: memory, noise and time are arguments here, too.
Memory that equals the last answer's to the bit is named instead of sent.
"""

import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deploy.server import sockets, wire
from deploy.server.wire import Closed, FrameReader, Malformed
from vla.contracts import config as configs
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix

RETRY_S = 0.2
"""Pause between two tries to connect again."""


class ServerStopped(ValueError):
    """The server said that it stops; an episode in progress ends, a new one connects again."""


class _Unreachable(ValueError):
    """Nobody listens at an address."""


class _StateNotHeld(ValueError):
    """The server does not hold the memory that a request names."""


class _LastResult(NamedTuple):
    """The memory in the last answer: sequence number of its request, and a copy of its bytes."""

    sequence: int
    memory: dict[str, bytes]

    def equals(self, memory: dict[str, np.ndarray]) -> bool:
        """Whether a memory equals this one to the bit."""
        return all(value.tobytes() == self.memory[name] for name, value in memory.items())


class RemotePolicy:
    """A connection to a policy server. A context manager.

    Args:
        address: "unix:PATH" or "HOST:PORT": the `--address` of `vla serve`.
        token: The server's token.
        authority: Certificate of the authority that signed the server's, for TLS.
        role: "control" to act, "watch" to ask for its health alone.
        timeout_s: How long an answer may take.
        jpeg: Quality, 1 to 100, of images sent as JPEG (needs OpenCV); 0 for raw images, with
            which decisions equal the policy's to the bit.

    Raises:
        ValueError: no server answers there, or it refuses.
    """

    def __init__(
        self, address: str, *, token: str = "", authority: Path | None = None,
        role: str = "control", timeout_s: float = 5.0, jpeg: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= jpeg <= 100:
            raise ValueError(f"jpeg: got {jpeg}, expected a quality of 1 to 100, or 0 for raw")
        tcp_host = "" if address.startswith("unix:") else address.rpartition(":")[0]
        if token and authority is None and tcp_host and not wire.is_loopback(tcp_host):
            raise ValueError(
                f"{address}: the token would travel in clear; give authority, the certificate that "
                "the server's is signed with"
            )
        self.address, self.role, self.timeout_s = address, role, timeout_s
        self.token, self.authority = token, authority
        self.encode = _encoder(jpeg) if jpeg else None
        self._open()

    def _open(self) -> None:
        """Connect and say hello."""
        self.sequence = -1
        self.last: _LastResult | None = None
        self.is_told = False
        self.connection = _connect(self.address, self.authority, self.timeout_s)
        user = sockets.foreign_user(self.connection)
        if user is not None:
            self.close()
            raise ValueError(
                f"{self.address}: user {user} serves there, expected you ({os.geteuid()}) or root; "
                "give a path in a folder of your own, such as $XDG_RUNTIME_DIR"
            )
        self.frames = FrameReader(self.connection, self.timeout_s)
        hello = {"do": "hello", "protocol": wire.PROTOCOL, "token": self.token, "role": self.role}
        try:
            said, start = self._ask(hello)
            self.start = PolicyState(tensors={name: x.copy() for name, x in start.items()})
            self._read_hello(said)
        except ValueError:
            self.close()
            raise

    def reconnect(self) -> None:
        """Connect anew to the same policy, for a new episode: the memory of the last one is lost.

        It waits up to `timeout_s` for a server that restarts.

        Raises:
            ValueError: none answers by then, it refuses, or its policy is for another arm.
        """
        self.close()
        before, deadline = self._kind(), time.monotonic() + self.timeout_s
        while True:
            try:
                self._open()
                break
            except ValueError as error:
                self.is_told = True  # the next new episode tries again
                waits = isinstance(error, (_Unreachable, ServerStopped))
                if not waits or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
        if self._kind() != before:
            self.close()
            raise ValueError(
                f"{self.address}: another policy is served there now; open it as a new RemotePolicy"
            )

    def _kind(self) -> tuple[Any, ...]:
        """Return what callers have built on: arm, shapes and length of actions and memory."""
        shapes = {name: value.shape for name, value in self.start.tensors.items()}
        return (self.robot, self.n_action_steps, self.noise_shape, self.remembers,
                self.max_prefix_len, shapes)  # fmt: skip

    def _read_hello(self, hello: dict[str, Any]) -> None:
        """Set the policy's attributes from the server's first answer."""

        def read(kind: Any, name: str) -> Any:
            return configs.from_json(kind, hello.get(name), f"{self.address}: {name}")

        self.robot: RobotSpec = read(RobotSpec, "robot")
        self.n_action_steps: int = read(int, "n_action_steps")
        self.noise_shape: tuple[int, int, int] = read(tuple[int, int, int], "noise_shape")
        self.remembers: bool = read(bool, "remembers")
        self.max_prefix_len: int = read(int, "max_prefix_len")
        self.about: dict[str, Any] = hello.get("about", {})

    def __enter__(self) -> "RemotePolicy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and release control; a second call does nothing."""
        self.connection.close()

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return self.start.map(lambda value: np.repeat(value, batch, 0))

    def act(
        self, obs: Observation, state: PolicyState, noise: np.ndarray,
        prefix: Prefix | None = None, observed_s: float | None = None,
    ) -> tuple[ActionChunk, PolicyState]:  # fmt: skip
        """See `Policy.act`; `observed_s` is the observation's `time.monotonic`, now if None.

        Where the server said that it stops, a new episode (all of `time_s` 0) connects again.

        Raises:
            ServerStopped: it stopped within an episode; begin a new one.
            ValueError: the server refuses or does not answer; the caller has to hold the arm.
        """
        observed_s = time.monotonic() if observed_s is None else observed_s
        try:
            return self._act(obs, state, noise, prefix, observed_s)
        except ServerStopped:
            if np.any(obs.time_s):
                raise
        self.reconnect()
        return self._act(obs, state, noise, prefix, observed_s)

    def _act(
        self, obs: Observation, state: PolicyState, noise: np.ndarray, prefix: Prefix | None,
        observed_s: float,
    ) -> tuple[ActionChunk, PolicyState]:  # fmt: skip
        arrays = {  # longer numbers first, so that each array is aligned
            "time_s": np.asarray(obs.time_s), "noise": np.asarray(noise),
            "proprio": np.asarray(obs.proprio), "image_ok": np.asarray(obs.image_ok),
        }  # fmt: skip
        if prefix is not None:
            name = "guide" if prefix.guided else "prefix"
            arrays |= {f"{name}_values": np.asarray(prefix.values),
                       f"{name}_weight": np.asarray(prefix.mask)}  # fmt: skip
        images = np.asarray(obs.images)
        arrays |= {"images": images} if self.encode is None else self._encoded(images)
        memory = {name: np.asarray(state[name]) for name in self.start.tensors}
        if self.last is not None and self.last.equals(memory):
            try:
                return self._decided(obs, observed_s, {"continues": self.last.sequence}, arrays)
            except _StateNotHeld:  # then the whole memory, once
                pass
        return self._decided(
            obs, observed_s, {}, {"time_s": arrays.pop("time_s"), **memory, **arrays}
        )

    def _encoded(self, images: np.ndarray) -> dict[str, np.ndarray]:
        assert self.encode is not None
        data, lengths = self.encode(images)
        return {"jpeg_bytes": lengths, "jpeg": data}

    def _decided(
        self,
        obs: Observation,
        observed_s: float,
        more: dict[str, int],
        arrays: dict[str, np.ndarray],
    ) -> tuple[ActionChunk, PolicyState]:
        self.sequence += 1
        say = {
            "do": "act", "sequence": self.sequence, "age_s": time.monotonic() - observed_s,
            "task": list(obs.task), **more,
        }  # fmt: skip
        answer, arrays = self._ask(say, arrays)
        if answer.get("sequence") != self.sequence:
            raise ValueError(f"{self.address}: answered another request; connect again")
        new = {name: value.copy() for name, value in arrays.items()}
        values = new.pop("values")
        self.last = _LastResult(
            sequence=self.sequence, memory={name: value.tobytes() for name, value in new.items()}
        )
        return ActionChunk(values=values, start_s=np.asarray(obs.time_s)), PolicyState(tensors=new)

    def health(self) -> dict[str, Any]:
        """Return the state of the server."""
        return self._ask({"do": "health"})[0]

    def _ask(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> wire.Frame:
        if not self.is_told:
            try:
                answer, values = self._exchange(wire.parts(say, arrays))
            except (OSError, Closed, Malformed) as error:
                self.close()
                raise ValueError(
                    f"{self.address}: the policy server does not answer ({error or 'it hung up'}); "
                    "see whether `vla serve` runs there, and connect again"
                ) from error
            self.is_told = answer.get("reconnect") is True
        if self.is_told:
            self.close()
            raise ServerStopped(
                f"{self.address}: the policy server stopped; hold the arm, and begin a new "
                "episode, at time_s 0, which connects again"
            )
        if answer.get("ok") is not True:
            kind = _StateNotHeld if answer.get("lacks") == "memory" else ValueError
            raise kind(f"{self.address}: the policy server refuses: {answer.get('error')}")
        return answer, values

    def _exchange(self, frame: list[wire.Part]) -> wire.Frame:
        """Send a frame and return the answer; a server that stops has answered before."""
        try:
            wire.send(self.connection, frame)
        except TimeoutError:
            raise
        except OSError as error:
            try:
                return self.frames.read()
            except (OSError, Closed, Malformed):
                raise error from None
        return self.frames.read()


def _encoder(quality: int) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    try:
        from deploy.server import jpeg
    except ImportError as error:
        raise ValueError(
            f"jpeg: {error}; install opencv-python-headless, or send raw images, jpeg=0"
        ) from error
    return lambda images: jpeg.encode(images, quality)


def _connect(address: str, authority: Path | None, timeout_s: float) -> socket.socket:
    connection: socket.socket | None = None
    try:
        if address.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout_s)
            connection.connect(address.removeprefix("unix:"))
            return connection
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority:
            context = ssl.create_default_context(cafile=str(authority))
            connection = context.wrap_socket(connection, server_hostname=host.strip("[]"))
        return connection
    except (OSError, ValueError) as error:
        if connection is not None:
            connection.close()
        raise _Unreachable(
            f"{address}: no policy server there ({error}); start one with `vla serve`, or give its "
            "address, unix:PATH or HOST:PORT"
        ) from error
