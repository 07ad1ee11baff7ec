"""Who knows no token, systems without descriptors, frames and outputs that are none."""

import contextlib
import errno
import json
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from deploy.server import server, sockets, wire
from deploy.server.client import RemotePolicy
from deploy.server.server import Server
from tests.served import HELLO, Wrapped, given, serving, talk


def test_strangers_who_come_back_shut_nobody_out(policy):
    """24 of them are silent, are hung up on or not, and connect again at once."""
    with serving(policy, token="t" * 32) as (address, one):
        host, port = address.split(":")
        over = threading.Event()

        def stranger():
            while not over.is_set():
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host, int(port)), 1) as s,
                ):
                    s.settimeout(0.2)
                    s.recv(1)

        threads = [threading.Thread(target=stranger) for _ in range(24)]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + 10
            while one.health()["clients"] < 20:
                assert time.monotonic() < deadline
            for _ in range(20):
                with RemotePolicy(address, token="t" * 32, role="watch") as watcher:
                    assert watcher.health()["clients"] > 1
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_more_strangers_than_there_are_slots_lose_the_oldest(policy, monkeypatch):
    monkeypatch.setattr(server, "STRANGERS", 4)
    with serving(policy) as (address, _), contextlib.ExitStack() as opened:
        host, port = address.split(":")
        silent = [
            opened.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(5)
        ]
        assert silent[0].recv(1) == b""  # it was hung up on
        with RemotePolicy(address, role="watch") as watcher:
            assert watcher.health()["clients"] == 4


def test_no_more_clients_than_slots_are_let_in(policy, monkeypatch):
    monkeypatch.setattr(server, "CLIENTS", 2)
    with serving(policy) as (address, _), contextlib.ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(RemotePolicy(address, role="watch"))
        with pytest.raises(ValueError, match="2 clients are connected already; close one"):
            RemotePolicy(address, role="watch")


def test_a_connection_that_cannot_be_accepted_ends_no_server(policy, caplog):
    class Failing(socket.socket):
        """A listener that runs out of descriptors twice."""

        left = 2

        def accept(self):
            self.left -= 1
            if self.left >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listener = Failing(fileno=sockets.listen("127.0.0.1:0", "", False).detach())
    with Server(policy, listener) as one:
        thread = threading.Thread(target=one.serve)
        thread.start()
        host, port = one.listener.getsockname()
        with RemotePolicy(f"{host}:{port}", role="watch") as watcher:
            assert watcher.health()["clients"] == 1
        one.close()
        thread.join(5)
        assert not thread.is_alive()
        assert listener.left < 0  # it failed twice, and again is not logged again
    assert caplog.text.count("Too many open files") == 1


def test_a_token_never_travels_in_clear():
    for host in ("192.0.2.1:7410", "robot.example:7410", "[2001:db8::1]:7410"):
        with pytest.raises(ValueError, match="would travel in clear; give authority"):
            RemotePolicy(host, token="t" * 32)


@pytest.mark.parametrize("shape", [[0, 2**25, 2**25, 2**25], [2**25, 0, 2**25, 2**25, 2**25]])
def test_an_array_of_nothing_with_huge_sides_is_no_frame(policy, caplog, shape):
    head = json.dumps({"say": HELLO, "arrays": [["x", "float32", shape]]}).encode()
    with serving(policy) as (address, _):
        answers = talk(address, [wire.PREFIX.pack(wire.MAGIC, len(head), 0) + head])
    assert [a["ok"] for a in answers] == [False]
    assert [record.exc_info for record in caplog.records] == [False]  # a line, no traceback


def test_an_output_that_is_not_finite_never_leaves(policy):
    class Diverged(Wrapped):
        def act(self, obs, state, noise, prefix=None):
            chunk, after = policy.act(obs, state, noise, prefix)
            return replace(chunk, values=np.full_like(chunk.values, np.nan)), after

    with serving(Diverged(policy)) as (address, _), RemotePolicy(address) as remote:
        for _ in range(2):  # the connection stays
            with pytest.raises(ValueError, match="is not finite; hold the arm"):
                remote.act(*given(policy))


def test_half_a_character_is_no_instruction(policy):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        obs, state, noise = given(policy)
        with pytest.raises(ValueError, match="expected 1 to"):
            remote.act(replace(obs, task=("\ud800",)), state, noise)
