"""A server that is told to stop: what is in flight is answered, and clients hear of it."""

import itertools
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from deploy.commands import serve
from deploy.server import wire
from deploy.server.client import RemotePolicy, ServerStopped
from tests.served import HELLO, Slow, given, pack, same, serving, talk

TOKEN = "correct horse battery"


def fails(remote, policy):
    """Ask for a decision that never comes."""
    with pytest.raises(ValueError, match="the policy server"):
        remote.act(*given(policy))


def asking(late, remote):
    """Return the thread that asks for a decision that never comes, once that is awaited."""
    thread = threading.Thread(target=fails, args=(remote, late.policy))
    thread.start()
    assert late.begun.wait(10)
    return thread


def ended(server):
    """Wait until `serve` has returned."""
    assert server.stopped.wait(10)


def tls_of(kind, request):
    """Return the server's TLS context and the client's options."""
    if kind != "tls":
        return None, {}
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = request.getfixturevalue("tmp_path")
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(files[1]),
         "-out", str(files[0])],
        check=True, capture_output=True,
    )  # fmt: skip
    return serve.tls(*files), {"token": TOKEN, "authority": files[0]}


@pytest.mark.parametrize("kind", ["unix", "loopback", "tls"])
def test_a_decision_in_flight_is_answered_and_then_the_client_is_told(
    policy, tmp_path, kind, request
):
    context, more = tls_of(kind, request)
    at = f"unix:{tmp_path / 's'}" if kind == "unix" else "127.0.0.1:0"
    late = Slow(policy)
    with serving(late, at, token=more.get("token", ""), tls=context) as (address, one):
        remote = RemotePolicy(address, **more)
        found = []
        thread = threading.Thread(target=lambda: found.append(remote.act(*given(policy))))
        thread.start()
        assert late.begun.wait(10)
        one.stop()
        time.sleep(0.4)  # the drain has begun
        assert not one.is_ready
        assert one.is_alive
        late.go_on.set()
        thread.join(10)
        same(found[0], policy.act(*given(policy)))
        ended(one)
        obs, _, noise = given(policy, time_s=0.8)
        with pytest.raises(ServerStopped, match="the policy server stopped; hold the arm, and be"):
            remote.act(obs, found[0][1], noise)
        remote.close()


@pytest.mark.parametrize("kind", ["unix", "loopback", "tls"])
def test_an_idle_client_is_told_and_nobody_new_gets_in(policy, tmp_path, kind, request):
    context, more = tls_of(kind, request)
    at = f"unix:{tmp_path / 's'}" if kind == "unix" else "127.0.0.1:0"
    with serving(policy, at, token=more.get("token", ""), tls=context) as (address, one):
        remote = RemotePolicy(address, **more)
        one.stop()
        ended(one)
        with pytest.raises(ServerStopped):
            remote.health()


def test_a_newcomer_is_told_to_come_back(policy):
    late = Slow(policy)
    with serving(late, drain_timeout_s=60.0) as (address, one), RemotePolicy(address) as remote:
        thread = threading.Thread(target=lambda: remote.act(*given(policy)))
        thread.start()
        assert late.begun.wait(10)
        one.stop()
        with pytest.raises(ServerStopped):
            RemotePolicy(address, role="watch")
        (answer,) = talk(address, [pack(HELLO)])
        assert (answer["ok"], answer["reconnect"]) == (False, True)
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 5.0) as silent:  # told before its hello
            answer, _ = wire.FrameReader(silent, 5.0).read(0)
        assert (answer["ok"], answer["reconnect"]) == (False, True)
        assert one.counts.connections["draining"] == 3
        late.go_on.set()
        thread.join(10)


def test_what_takes_too_long_is_given_up_in_time(policy):
    late = Slow(policy)
    with serving(late, drain_timeout_s=0.5) as (address, one), RemotePolicy(address) as remote:
        ask = asking(late, remote)
        begin = time.monotonic()
        one.stop()
        ended(one)
        assert time.monotonic() - begin < 2.0
        one.close()
        ask.join(10)
        assert not ask.is_alive()
        late.go_on.set()


def test_a_second_call_stops_at_once(policy):
    late = Slow(policy)
    with serving(late, drain_timeout_s=30.0) as (address, one), RemotePolicy(address) as remote:
        ask = asking(late, remote)
        one.stop()
        one.stop()
        assert one.stopped.wait(2)
        one.close()
        ask.join(10)
        late.go_on.set()


def test_a_new_episode_connects_again_and_one_in_progress_does_not(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    with serving(policy, at) as (address, first):
        remote = RemotePolicy(address)
        _, state = remote.act(*given(policy))
        first.stop()
        ended(first)
    obs, _, noise = given(policy, time_s=0.8)
    with serving(policy, at) as (_, second):
        for _ in range(2):  # it never goes on by itself
            with pytest.raises(ServerStopped, match="begin a new episode, at time_s 0, which conn"):
                remote.act(obs, state, noise)
        assert second.health()["clients"] == 0
        same(remote.act(*given(policy)), policy.act(*given(policy)))
        assert second.health()["acting_clients"] == 1
        remote.close()


def test_a_client_waits_for_a_server_that_restarts(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    with serving(policy, at) as (address, first):
        remote = RemotePolicy(address)
        first.stop()
        ended(first)
    found = []
    thread = threading.Thread(target=lambda: found.append(remote.act(*given(policy))))
    remote.timeout_s = 20.0
    thread.start()
    time.sleep(0.5)
    assert not found
    with serving(policy, at, max_observation_age_s=10.0):
        thread.join(20)
        remote.close()
    same(found[0], policy.act(*given(policy)))


def test_a_server_that_does_not_come_back_is_tried_again_by_the_next_episode(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    with serving(policy, at) as (address, first):
        remote = RemotePolicy(address, timeout_s=0.3)
        first.stop()
        ended(first)
    with pytest.raises(ValueError, match="no policy server there"):
        remote.act(*given(policy))
    with serving(policy, at):
        remote.act(*given(policy))
        remote.close()


def test_another_policy_in_the_same_place_is_not_taken_for_the_first(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"

    class Other:
        robot, noise_shape = policy.robot, policy.noise_shape
        max_prefix_len, remembers = policy.max_prefix_len, policy.remembers
        initial_state, act = policy.initial_state, policy.act
        n_action_steps = policy.n_action_steps - 1

    with serving(policy, at) as (address, first):
        remote = RemotePolicy(address)
        first.stop()
        ended(first)
    with serving(Other(), at), pytest.raises(ValueError, match="another policy is served there"):
        remote.act(*given(policy))


def test_the_command_answers_what_is_in_flight_and_ends_with_code_0(exported, policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    line = [sys.executable, "-m", "vla.cli", "serve", str(exported["remembers"]), "--address", at]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "served at" in process.stdout.readline()
    remote, answered = RemotePolicy(at), []
    state = remote.initial_state(1)
    for k in itertools.count():
        if k == 20:
            process.send_signal(signal.SIGTERM)
            begin = time.monotonic()
        obs, _, noise = given(policy, time_s=0.8 * k, seed=k)
        try:
            chunk, state = remote.act(obs, state, noise)
        except ServerStopped:
            break
        answered.append(np.isfinite(chunk.values).all())
    said, errors = process.communicate(timeout=10)
    assert time.monotonic() - begin < 6
    assert (process.returncode, said, errors) == (0, "stopped\n", "")
    assert len(answered) >= 20
    assert all(answered)
    with pytest.raises(OSError, match="No such file|refused"), socket.socket(socket.AF_UNIX) as s:
        s.connect(str(tmp_path / "s"))
