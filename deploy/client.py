"""A policy that is somewhere else: asks a server for every decision. Needs nothing but numpy.

It satisfies `vla.contracts.protocols.ArmPolicy`: memory, noise and time are arguments here, too.
Memory that is to the bit what the server's last answer brought is named to it instead of sent.
"""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy import wire
from deploy.wire import Closed, Inbox, Malformed
from vla.contracts import config as configs
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix


class _Lacking(ValueError):
    """The server does not hold the memory that a request named."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The memory that the last answer brought."""

    sequence: int
    """Of its request."""
    memory: dict[str, bytes]
    """Bytes of each array; nobody else can change them."""

    def is_of(self, memory: dict[str, np.ndarray]) -> bool:
        """Whether a memory is this one to the bit."""
        return all(value.tobytes() == self.memory[name] for name, value in memory.items())


class RemotePolicy:
    """A connection to a policy server. A context manager.

    Args:
        at: "unix:PATH" or "HOST:PORT", as `vla serve` was told.
        token: What the server asks for.
        authority: Certificate of who signed the server's, where it speaks TLS.
        role: "control" to act, "watch" to ask for its health alone.
        timeout_s: How long an answer may take.
        jpeg: Quality, 1 to 100, at which pictures are sent as JPEG (needs OpenCV); 0 for raw ones,
            with which decisions are those of the policy to the bit.

    Raises:
        ValueError: nobody answers there, or the server refuses.
    """

    def __init__(
        self, at: str, *, token: str = "", authority: Path | None = None, role: str = "control",
        timeout_s: float = 5.0, jpeg: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= jpeg <= 100:
            raise ValueError(f"jpeg: got {jpeg}, expected a quality of 1 to 100, or 0 for raw")
        self.at, self.sequence = at, -1
        self.encode = _encoder(jpeg) if jpeg else None
        self.answer: _Answer | None = None
        self.connection = _connect(at, authority, timeout_s)
        self.inbox = Inbox(self.connection, timeout_s)
        try:
            told, start = self._ask(
                {"do": "hello", "protocol": wire.PROTOCOL, "token": token, "role": role}
            )
            self.start = {name: value.copy() for name, value in start.items()}
            self._know(told)
        except ValueError:
            self.close()
            raise

    def _know(self, told: dict[str, Any]) -> None:
        """Take over what a server says of its policy."""
        at = self.at
        self.robot: RobotSpec = configs.from_json(RobotSpec, told.get("robot"), f"{at}: robot")
        self.execute: int = configs.from_json(int, told.get("execute"), f"{at}: execute")
        shape = configs.from_json(tuple[int, int, int], told.get("noise_shape"), f"{at}: noise")
        self.noise_shape: tuple[int, int, int] = shape
        self.prefix: int = configs.from_json(int, told.get("prefix"), f"{at}: prefix")
        self.about: dict[str, Any] = told.get("about", {})

    def __enter__(self) -> "RemotePolicy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, and give up control; calling it twice does no harm."""
        self.connection.close()

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        parts = {name: np.repeat(value, batch, 0) for name, value in self.start.items()}
        return PolicyState(**parts)

    def act(
        self, obs: Observation, state: PolicyState, noise: np.ndarray,
        prefix: Prefix | None = None, seen_s: float | None = None,
    ) -> tuple[ActionChunk, PolicyState]:  # fmt: skip
        """See `Policy.act`.

        Args:
            obs: What is seen.
            state: Memory before.
            noise: As in `Policy.act`.
            prefix: As in `Policy.act`.
            seen_s: When it was seen, by `time.monotonic`; now if None.

        Raises:
            ValueError: the server refuses, or is gone; the arm has to be held.
        """
        seen_s = time.monotonic() if seen_s is None else seen_s
        arrays = {  # longer numbers first: each then begins at a multiple of its size
            "time_s": np.asarray(obs.time_s), "noise": np.asarray(noise),
            "proprio": np.asarray(obs.proprio), "image_ok": np.asarray(obs.image_ok),
        }  # fmt: skip
        if prefix is not None:
            name = "guide" if prefix.guided else "prefix"
            arrays |= {f"{name}_values": np.asarray(prefix.values),
                       f"{name}_weight": np.asarray(prefix.weight)}  # fmt: skip
        images = np.asarray(obs.images)
        arrays |= {"images": images} if self.encode is None else self._encoded(images)
        memory = {name: np.asarray(getattr(state, name)) for name in self.start}
        if self.answer is not None and self.answer.is_of(memory):
            try:
                return self._decided(obs, seen_s, {"continues": self.answer.sequence}, arrays)
            except _Lacking:  # then the whole of it, once
                pass
        return self._decided(obs, seen_s, {}, {"time_s": arrays.pop("time_s"), **memory, **arrays})

    def _encoded(self, images: np.ndarray) -> dict[str, np.ndarray]:
        assert self.encode is not None
        data, lengths = self.encode(images)
        return {"jpeg_bytes": lengths, "jpeg": data}

    def _decided(
        self, obs: Observation, seen_s: float, more: dict[str, int], arrays: dict[str, np.ndarray]
    ) -> tuple[ActionChunk, PolicyState]:
        self.sequence += 1
        say = {
            "do": "act", "sequence": self.sequence, "age_s": time.monotonic() - seen_s,
            "task": list(obs.task), **more,
        }  # fmt: skip
        told, found = self._ask(say, arrays)
        if told.get("sequence") != self.sequence:
            raise ValueError(f"{self.at}: answered another request; connect anew")
        own = {name: value.copy() for name, value in found.items()}
        values = own.pop("values")
        self.answer = _Answer(
            sequence=self.sequence, memory={name: value.tobytes() for name, value in own.items()}
        )
        return ActionChunk(values=values, start_s=np.asarray(obs.time_s)), PolicyState(**own)

    def health(self) -> dict[str, Any]:
        """Return how the server is."""
        return self._ask({"do": "health"})[0]

    def _ask(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> wire.Frame:
        try:
            wire.send(self.connection, wire.parts(say, arrays))
            told, found = self.inbox.frame()
        except (OSError, Closed, Malformed) as error:
            self.close()
            raise ValueError(
                f"{self.at}: the policy server does not answer ({error or 'it hung up'}); see "
                "whether `vla serve` runs there, and connect anew"
            ) from error
        if told.get("ok") is not True:
            kind = _Lacking if told.get("lacks") == "memory" else ValueError
            raise kind(f"{self.at}: the policy server refuses: {told.get('error')}")
        return told, found


def _encoder(quality: int) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return what makes JPEG of pictures.

    Raises:
        ValueError: OpenCV is not installed.
    """
    try:
        from deploy import jpeg
    except ImportError as error:
        raise ValueError(
            f"jpeg: {error}; install opencv-python-headless, or send raw pictures, jpeg=0"
        ) from error
    return lambda images: jpeg.encode(images, quality)


def _connect(at: str, authority: Path | None, timeout_s: float) -> socket.socket:
    found: socket.socket | None = None
    try:
        if at.startswith("unix:"):
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            found.settimeout(timeout_s)
            found.connect(at.removeprefix("unix:"))
            return found
        host, _, port = at.rpartition(":")
        found = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority:
            context = ssl.create_default_context(cafile=str(authority))
            found = context.wrap_socket(found, server_hostname=host.strip("[]"))
        return found
    except (OSError, ValueError) as error:
        if found is not None:
            found.close()
        raise ValueError(
            f"{at}: no policy server there ({error}); start one with `vla serve`, or give its "
            "address, unix:PATH or HOST:PORT"
        ) from error
