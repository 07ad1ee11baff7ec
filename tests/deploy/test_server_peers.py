"""Who is at the other end: other users, clients that come back at once, machines that vanish."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from deploy.server import connection, sockets, wire
from deploy.server.client import RemotePolicy
from tests.served import HELLO, Slow, given, pack, same, serving

TCP_REPAIR = 19
"""Option with which a socket is closed without a word, as by a power cut; needs a privilege."""


@pytest.fixture
def place():
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def pretends(monkeypatch, user):
    monkeypatch.setattr(sockets, "foreign_user", lambda one: user)


def test_the_same_user_is_no_foreigner(policy, tmp_path):
    with serving(policy, f"unix:{tmp_path / 's'}") as (address, _), RemotePolicy(address) as remote:
        assert sockets.foreign_user(remote.connection) is None
        same(remote.act(*given(policy)), policy.act(*given(policy)))


def test_a_user_who_is_neither_ours_nor_root_is_told_by_the_kernel(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        assert sockets.foreign_user(ours) == (me or None)  # root may always
    with socket.socket() as tcp:
        assert sockets.foreign_user(tcp) is None


def test_a_client_of_another_user_is_refused(policy, tmp_path, monkeypatch):
    with serving(policy, f"unix:{tmp_path / 's'}") as (address, one):
        monkeypatch.setattr(
            connection.sockets, "foreign_user", lambda x: 65534 if x in accepted(one) else None
        )
        with pytest.raises(ValueError, match="user 65534 asks, expected this server's"):
            RemotePolicy(address)
        assert one.counts.connections["user"] == 1


def accepted(server):
    return [one.connection for one in server.connections]


def test_a_client_asks_nothing_of_another_users_server(policy, tmp_path, monkeypatch):
    with serving(policy, f"unix:{tmp_path / 's'}") as (address, one):
        mine = accepted
        monkeypatch.setattr(sockets, "foreign_user", lambda x: None if x in mine(one) else 65534)
        with pytest.raises(ValueError, match=r"user 65534 serves there, expected you .*XDG_RUN"):
            RemotePolicy(address)
        assert one.health()["acting_clients"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a client as another user")
def test_another_user_who_reaches_the_socket_is_refused_all_the_same(policy, place):
    asks = (  # the server may refuse, and hang up, before it is asked
        "import contextlib, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "with contextlib.suppress(BrokenPipeError): s.sendall(bytes.fromhex(sys.argv[2]))\n"
        "print(s.recv(1000))"
    )
    with serving(policy, f"unix:{place / 's'}"):
        (place / "s").chmod(0o777)  # as if it were everybody's
        python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        done = subprocess.run(
            [python, "-c", asks, str(place / "s"), pack(HELLO).hex()], user=65534, cwd="/",
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    if "Permission denied" in done.stderr:
        pytest.skip("another user cannot run this Python")
    assert "user 65534 asks, expected this server" in done.stdout, done.stderr


def test_a_client_that_connects_anew_at_once_gets_control(policy):
    with serving(policy) as (address, _):
        for _ in range(50):
            with RemotePolicy(address) as remote:
                assert remote.role == "control"


def test_a_hello_waits_a_moment_for_a_decision_in_flight(policy):
    slow = Slow(policy)
    with serving(slow) as (address, _):
        first = RemotePolicy(address, timeout_s=0.1)
        with pytest.raises(ValueError, match="does not answer"):
            first.act(*given(policy))  # closes its connection
        assert slow.begun.is_set()
        threading.Timer(0.3, slow.go_on.set).start()
        with RemotePolicy(address) as second:
            same(second.act(*given(policy)), policy.act(*given(policy)))


def test_the_system_watches_over_connections_of_tcp(policy):
    with serving(policy) as (address, one), RemotePolicy(address):
        (held,) = accepted(one)
        assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        ms = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert ms == 1000 * sockets.VANISHED_S


def test_a_controller_that_vanishes_without_a_word_loses_control(policy, monkeypatch):
    monkeypatch.setattr(sockets, "KEEPALIVE_S", 1)
    with serving(policy, idle_timeout_s=60.0) as (address, one):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 5) as gone:
            gone.sendall(pack(HELLO))
            wire.FrameReader(gone).read()
            assert one.health()["acting_clients"] == 1
            try:
                gone.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            except PermissionError:
                pytest.skip("the system lets nobody vanish")
        begin = time.monotonic()
        while one.health()["acting_clients"]:
            assert time.monotonic() < begin + 10  # of 60 s of silence that are allowed
            time.sleep(0.05)


def test_who_leaves_while_it_is_refused_leaves_no_traceback(policy, caplog):
    with serving(policy) as (address, one), contextlib.ExitStack() as stack:
        stack.enter_context(RemotePolicy(address))
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 5) as rival:
            rival.sendall(pack(HELLO))
        deadline = time.monotonic() + 5
        while not one.counts.connections["control"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert "Traceback" not in caplog.text
