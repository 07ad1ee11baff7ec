"""A policy server in a thread, and what tests say to it."""

import contextlib
import socket
import threading

import numpy as np

from deploy import server, wire
from deploy.server import Limits, Server
from tests.fakes import fake_observation


@contextlib.contextmanager
def serving(policy, at="127.0.0.1:0", token="", tls=None, **limits):
    """Serve a policy; yield the address and the server."""
    listener = server.listen(at, token, tls is not None)
    with Server(policy, listener, token=token, tls=tls, limits=Limits(**limits)) as one:
        thread = threading.Thread(target=one.serve)
        thread.start()
        name = listener.getsockname()
        try:
            yield (at if at.startswith("unix:") else f"{name[0]}:{name[1]}"), one
        finally:
            one.close()
            thread.join(5)
            assert not thread.is_alive()


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
    for name in ("tokens", "slot_time", "slot_count"):
        np.testing.assert_array_equal(getattr(state, name), getattr(state2, name))


def talk(address, frames, wait_s=5.0):
    """Send bytes over one connection and return the answers until it ends or is silent."""
    answers = []
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), wait_s) as connection:

        def receive(size):
            found = b""
            while len(found) < size and (part := connection.recv(size - len(found))):
                found += part
            return found

        with contextlib.suppress(OSError, wire.Closed, wire.Malformed):
            for frame in frames:
                connection.sendall(frame)
                answers.append(wire.unpack(receive)[0])
            connection.shutdown(socket.SHUT_WR)
            answers.append(wire.unpack(receive)[0])
    return answers


HELLO = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "control"}


def request(policy, **changes):
    """Return a frame that asks for a decision, with some of it changed."""
    obs, state, noise = given(policy)
    arrays = {
        "images": obs.images, "image_ok": obs.image_ok, "proprio": obs.proprio,
        "time_s": obs.time_s, "tokens": state.tokens, "slot_time": state.slot_time,
        "slot_count": state.slot_count, "noise": noise,
    }  # fmt: skip
    say = {"do": "act", "sequence": 0, "age_s": 0.0, "task": list(obs.task)}
    for name, value in changes.items():
        (arrays if name in arrays or isinstance(value, np.ndarray) else say)[name] = value
    return wire.pack(say, {k: v for k, v in arrays.items() if v is not None})
