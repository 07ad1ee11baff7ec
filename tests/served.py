"""A policy server in a thread, and what tests say to it."""

import contextlib
import socket
import threading

import numpy as np

from deploy.server import sockets, wire
from deploy.server.server import Limits, Server
from tests.fakes import fake_observation


@contextlib.contextmanager
def serving(policy, address="127.0.0.1:0", token="", tls=None, **limits):
    """Serve a policy; yield the address and the server."""
    listener = sockets.listen(address, token, tls is not None)
    with Server(policy, listener, token=token, tls=tls, limits=Limits(**limits)) as running:
        thread = threading.Thread(target=running.serve)
        thread.start()
        name = listener.getsockname()
        try:
            yield (address if address.startswith("unix:") else f"{name[0]}:{name[1]}"), running
        finally:
            running.close()
            thread.join(5)
            assert not thread.is_alive()


class Wrapped:
    """A policy; a test says what another `act` does."""

    def __init__(self, policy):
        self.policy = policy

    def __getattr__(self, name):
        return getattr(self.policy, name)


class Slow(Wrapped):
    """A policy that decides when it is told to."""

    def __init__(self, policy):
        super().__init__(policy)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def act(self, obs, state, noise, prefix=None):
        self.begun.set()
        assert self.go_on.wait(20)
        return self.policy.act(obs, state, noise)


def given(policy, rows=1, time_s=0.0, seed=0):
    rng = np.random.default_rng(seed)
    obs = fake_observation(rng, rows, time_s)
    return obs, policy.initial_state(rows), rng.standard_normal(
        (rows, *policy.noise_shape), np.float32
    )  # fmt: skip


def same(one, other):
    (chunk, state), (chunk2, state2) = one, other
    np.testing.assert_array_equal(chunk.values, chunk2.values)
    np.testing.assert_array_equal(chunk.start_s, chunk2.start_s)
    assert state.tensors.keys() == state2.tensors.keys()
    for name, value in state.tensors.items():
        np.testing.assert_array_equal(value, state2[name])


def talk(address, frames, wait_s=5.0):
    """Send bytes over one connection and return the answers until it ends or is silent."""
    answers = []
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), wait_s) as connection:

        def receive(size):
            data = b""
            while len(data) < size and (part := connection.recv(size - len(data))):
                data += part
            return data

        with contextlib.suppress(OSError, wire.Closed, wire.Malformed):
            for frame in frames:
                connection.sendall(frame)
                answers.append(wire.unpack(receive)[0])
            connection.shutdown(socket.SHUT_WR)
            answers.append(wire.unpack(receive)[0])
    return answers


HELLO = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "control"}


def pack(say, arrays=None):
    """Return a frame in one piece."""
    return b"".join(wire.parts(say, arrays))


def request(policy, **changes):
    """Return a frame that asks for a decision, with some of it changed."""
    obs, state, noise = given(policy)
    arrays = {
        "images": obs.images, "image_ok": obs.image_ok, "proprio": obs.proprio,
        "time_s": obs.time_s, **state.tensors, "noise": noise,
    }  # fmt: skip
    say = {"do": "act", "sequence": 0, "age_s": 0.0, "task": list(obs.task)}
    for name, value in changes.items():
        (arrays if name in arrays or isinstance(value, np.ndarray) else say)[name] = value
    return pack(say, {k: v for k, v in arrays.items() if v is not None})
