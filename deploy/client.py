"""A policy that is somewhere else: asks a server for every decision. Needs nothing but numpy.

It satisfies `vla.contracts.protocols.ArmPolicy`: memory, noise and time are arguments here, too.
"""

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import numpy as np

from deploy import wire
from deploy.wire import Closed, Malformed
from vla.contracts import config as configs
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState


class RemotePolicy:
    """A connection to a policy server. A context manager.

    Args:
        at: "unix:PATH" or "HOST:PORT", as `vla serve` was told.
        token: What the server asks for.
        authority: Certificate of who signed the server's, where it speaks TLS.
        role: "control" to act, "watch" to ask for its health alone.
        timeout_s: How long an answer may take.

    Raises:
        ValueError: nobody answers there, or the server refuses.
    """

    def __init__(
        self, at: str, *, token: str = "", authority: Path | None = None, role: str = "control",
        timeout_s: float = 5.0,
    ) -> None:  # fmt: skip
        self.at, self.sequence = at, -1
        self.connection = _connect(at, authority, timeout_s)
        try:
            told, self.start = self._ask(
                {"do": "hello", "protocol": wire.PROTOCOL, "token": token, "role": role}
            )
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
        self, obs: Observation, state: PolicyState, noise: np.ndarray, seen_s: float | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`.

        Args:
            obs: What is seen.
            state: Memory before.
            noise: As in `Policy.act`.
            seen_s: When it was seen, by `time.monotonic`; now if None.

        Raises:
            ValueError: the server refuses, or is gone; the arm has to be held.
        """
        self.sequence += 1
        age_s = 0.0 if seen_s is None else time.monotonic() - seen_s
        say = {"do": "act", "sequence": self.sequence, "age_s": age_s, "task": list(obs.task)}
        told, found = self._ask(
            say,
            {
                "images": np.asarray(obs.images), "image_ok": np.asarray(obs.image_ok),
                "proprio": np.asarray(obs.proprio), "time_s": np.asarray(obs.time_s),
                "tokens": np.asarray(state.tokens), "slot_time": np.asarray(state.slot_time),
                "slot_count": np.asarray(state.slot_count), "noise": np.asarray(noise),
            },
        )  # fmt: skip
        if told.get("sequence") != self.sequence:
            raise ValueError(f"{self.at}: answered another request; connect anew")
        values = found.pop("values")
        return ActionChunk(values=values, start_s=np.asarray(obs.time_s)), PolicyState(**found)

    def health(self) -> dict[str, Any]:
        """Return how the server is."""
        return self._ask({"do": "health"})[0]

    def _ask(self, say: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> wire.Frame:
        try:
            self.connection.sendall(wire.pack(say, arrays))
            told, found = wire.unpack(self._receive)
        except (OSError, Closed, Malformed) as error:
            self.close()
            raise ValueError(
                f"{self.at}: the policy server does not answer ({error or 'it hung up'}); see "
                "whether `vla serve` runs there, and connect anew"
            ) from error
        if told.get("ok") is not True:
            raise ValueError(f"{self.at}: the policy server refuses: {told.get('error')}")
        return told, found

    def _receive(self, size: int) -> bytearray:
        return wire.exactly(self.connection, size)


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
