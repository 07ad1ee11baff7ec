"""The policy server: who may do what, what is refused, and that it decides as the policy does."""

import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from deploy.commands import serve
from deploy.server import sockets, wire
from deploy.server.client import RemotePolicy
from deploy.server.request import ArraySpec
from tests.fakes import fake_noise, fake_observation, fake_policy
from tests.served import HELLO, Slow, Wrapped, given, pack, request, same, serving, talk
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Prefix

TOKEN = "correct horse battery"


@pytest.mark.parametrize("kind", ["unix", "loopback"])
def test_decisions_are_those_of_the_policy_to_the_bit(policy, tmp_path, kind):
    at = f"unix:{tmp_path / 's'}" if kind == "unix" else "127.0.0.1:0"
    with serving(policy, at) as (address, one), RemotePolicy(address) as remote:
        assert isinstance(remote, ArmPolicy)
        assert (remote.robot, remote.n_action_steps) == (policy.robot, policy.n_action_steps)
        assert remote.noise_shape == policy.noise_shape
        states = [policy.initial_state(2), remote.initial_state(2)]
        for k in range(12):
            obs, _, noise = given(policy, rows=2, time_s=0.8 * k, seed=k)
            ours = policy.act(obs, states[0], noise)
            theirs = remote.act(obs, states[1], noise)
            same(ours, theirs)
            states = [ours[1], theirs[1]]
        assert one.health()["decisions"] == 12


def test_a_checkpoint_is_served_as_well():
    policy = fake_policy()
    rng = np.random.default_rng(0)
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        obs, noise = fake_observation(rng, 1), fake_noise(rng, policy, 1)
        ours = policy.act(obs, policy.initial_state(1), noise)[0].values.numpy()
        theirs = remote.act(obs, remote.initial_state(1), noise)[0].values
        np.testing.assert_array_equal(ours, theirs)


def test_one_client_controls_and_others_watch_until_it_leaves(policy):
    with serving(policy) as (address, _):
        first = RemotePolicy(address)
        with pytest.raises(ValueError, match="another client controls"):
            RemotePolicy(address)
        with RemotePolicy(address, role="watch") as watcher:
            assert watcher.health()["acting_clients"]
            with pytest.raises(ValueError, match="a client that watches does not act"):
                watcher.act(*given(policy))
        first.close()
        deadline = time.monotonic() + 5
        while True:
            try:
                second = RemotePolicy(address)
                break
            except ValueError:
                assert time.monotonic() < deadline
        same(second.act(*given(policy)), policy.act(*given(policy)))
        second.close()


def test_health_is_answered_while_the_policy_decides(policy):
    slow = Slow(policy)
    with serving(slow) as (address, _), RemotePolicy(address) as remote:
        thread = threading.Thread(target=lambda: remote.act(*given(policy)))
        thread.start()
        assert slow.begun.wait(10)
        with RemotePolicy(address, role="watch") as watcher:
            assert watcher.health()["decisions"] == 0
        slow.go_on.set()
        thread.join(10)


def test_nobody_gets_in_without_the_token(policy):
    with serving(policy, token=TOKEN) as (address, one):
        for token in ("", "correct horse", TOKEN + "x"):
            with pytest.raises(ValueError, match="wrong token"):
                RemotePolicy(address, token=token)
        assert one.health()["decisions"] == 0
        with RemotePolicy(address, token=TOKEN) as remote:
            remote.act(*given(policy))


@pytest.mark.parametrize("at", ["0.0.0.0:0", "192.0.2.7:7410", "[::]:0", "example.org:80"])
@pytest.mark.parametrize(("token", "tls"), [("", False), (TOKEN, False), ("", True)])
def test_no_other_machine_reaches_it_without_token_and_tls(at, token, tls):
    with pytest.raises(ValueError, match="can be reached from elsewhere, which needs --token-file"):
        sockets.listen(at, token, tls)


@pytest.mark.parametrize("at", ["7410", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":80"])
def test_addresses_that_are_none_are_refused(at):
    with pytest.raises(ValueError, match=f"got '{at}', expected unix:PATH or HOST:PORT"):
        sockets.listen(at, "", tls=False)


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(ValueError, match="no socket"):
        sockets.listen(f"unix:{tmp_path / 'thesis'}", "", tls=False)
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_a_socket_on_which_a_server_listens_is_not_taken_over(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    with serving(policy, at) as (address, _), RemotePolicy(address) as remote:
        with pytest.raises(ValueError, match="another server listens there; stop it, or give"):
            sockets.listen(at, "", tls=False)
        remote.act(*given(policy))
        with RemotePolicy(address, role="watch") as watcher:  # newcomers still find the first
            assert watcher.health()["decisions"] == 1


def test_a_socket_whose_queue_is_full_is_not_taken_over(tmp_path):
    with socket.socket(socket.AF_UNIX) as deaf, contextlib.ExitStack() as stack:
        deaf.bind(str(tmp_path / "s"))
        deaf.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(tmp_path / "s"))
        with pytest.raises(ValueError, match="another server listens there"):
            sockets.listen(f"unix:{tmp_path / 's'}", "", tls=False)


def test_a_socket_that_a_dead_server_left_is_replaced(policy, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    sockets.listen(at, "", tls=False).close()
    assert (tmp_path / "s").is_socket()
    with serving(policy, at) as (address, _), RemotePolicy(address) as remote:
        remote.act(*given(policy))


def test_a_unix_socket_is_its_owners_alone(tmp_path):
    listener = sockets.listen(f"unix:{tmp_path / 's'}", "", tls=False)
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    listener.close()


@pytest.fixture
def certificate(tmp_path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout",
         str(files[1]), "-out", str(files[0])],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


def test_with_tls_clients_know_whom_they_talk_to_and_others_hear_nothing(policy, certificate):
    context = serve.tls(*certificate)
    with serving(policy, token=TOKEN, tls=context) as (address, _):
        with RemotePolicy(address, token=TOKEN, authority=certificate[0]) as remote:
            same(remote.act(*given(policy)), policy.act(*given(policy)))
        with pytest.raises(ValueError, match="does not answer"):
            RemotePolicy(address, token=TOKEN, timeout_s=2.0)  # speaks no TLS
        host, port = address.split(":")
        strict = ssl.create_default_context()  # does not know who signed it
        with socket.create_connection((host, int(port)), 5) as raw, pytest.raises(ssl.SSLError):
            strict.wrap_socket(raw, server_hostname=host)


def test_what_cannot_be_done_is_one_sentence_and_the_connection_stays(policy):
    wrong = {
        "sequence -1 after -1; count up": {"sequence": -1},
        "sequence 'x'": {"sequence": "x"},
        "an observation 0.6 s old, at most 0.5 s; hold the arm": {"age_s": 0.6},
        "an observation -1 s old": {"age_s": -1},
        "an observation None s old": {"age_s": None},
        "this server does hello, health, act": {"do": "exec"},
        "do 3": {"do": 3},
        "task: expected 1 to 64 instructions": {"task": []},
        "images: got uint8 (1, 2, 16, 32, 3), expected": {
            "images": np.zeros((1, 2, 16, 32, 3), np.uint8)
        },
        "proprio: is not finite": {"proprio": np.full((1, 2), np.nan, np.float32)},
        "slot_tokens: is not finite": {"slot_tokens": np.full((1, 7, 17, 64), np.inf, np.float32)},
        "noise: got float64": {"noise": np.zeros((1, *policy.noise_shape))},
        "time_s: is below 0": {"time_s": np.array([-1.0])},
        "array 'images' is missing or unknown": {"images": None},
        "array 'more' is missing or unknown": {"more": np.zeros(1)},
    }
    sequence = iter(range(1, 100))
    frames = [
        request(policy, **{"sequence": next(sequence), **changes}) for changes in wrong.values()
    ]
    with serving(policy) as (address, one):
        last = request(policy, sequence=100)
        hello, *answers, good = talk(address, [pack(HELLO), *frames, last])
        assert hello["ok"]
        for said, answer in zip(wrong, answers, strict=True):
            assert answer["ok"] is False
            assert said in answer["error"], answer
            assert "Traceback" not in answer["error"]
        assert good["ok"]
        assert one.health()["decisions"] == 1
        assert one.health()["refused"] == len(wrong)


def test_an_array_that_has_a_range_stays_in_it(policy):
    with serving(policy) as (address, one):
        real = np.dtype(np.float32)
        one.spec.entries["weight"] = ArraySpec(real, (3,), low=0.0, high=1.0)
        frames = [
            request(policy, sequence=i, weight=np.full((1, 3), value, np.float32))
            for i, value in enumerate((0.5, -0.1, 1.1))
        ]
        hello, good, low, high = talk(address, [pack(HELLO), *frames])[:4]
        assert hello["ok"]
        assert good["ok"]
        assert "weight: is below 0; hold the arm" in low["error"]
        assert "weight: is above 1; hold the arm" in high["error"]


def test_a_task_changes_only_with_a_new_episode(policy):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        state = remote.act(*given(policy))[1]
        obs, _, noise = given(policy, time_s=0.8)
        other = type(obs)(**{**vars(obs), "task": ("press the blue button",)})
        with pytest.raises(ValueError, match="another task in the middle of an episode"):
            remote.act(other, state, noise)
        remote.act(obs, state, noise)
        remote.act(type(obs)(**{**vars(other), "time_s": np.zeros(1)}), state, noise)


def test_an_observation_that_waited_too_long_is_refused(policy):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        with pytest.raises(ValueError, match="hold the arm, and observe again"):
            remote.act(*given(policy), observed_s=time.monotonic() - 1.0)
        remote.act(*given(policy), observed_s=time.monotonic())


def test_strangers_may_say_hello_and_nothing_else(policy):
    stranger = [pack({"do": "health"}), request(policy), pack({**HELLO, "role": "king"}),
                pack({**HELLO, "protocol": wire.PROTOCOL + 1}),
                pack({**HELLO, "token": 7})]  # fmt: skip
    with serving(policy) as (address, one):
        for frame in stranger:
            answers = talk(address, [frame])
            assert [a["ok"] for a in answers] == [False]  # and the connection ends
        assert one.health()["decisions"] == 0


def test_a_greeting_is_said_once_and_strangers_get_one_try_whatever_they_send(policy):
    with serving(policy) as (address, _):
        answers = talk(address, [pack(HELLO), pack({**HELLO, "role": "watch"})])
        assert [a["ok"] for a in answers] == [True, False]
        assert "has said hello already" in answers[1]["error"]
        odd = pack({**HELLO, "token": "\ud800"})  # half a character: it has no bytes
        assert [a["ok"] for a in talk(address, [odd, pack(HELLO)])] == [False]


def test_who_asks_too_often_is_told_so(policy):
    with serving(policy, max_request_rate_hz=5.0) as (address, _):
        answers = talk(address, [pack(HELLO), *[pack({"do": "health"})] * 8])
        assert [a["ok"] for a in answers] == [True] * 5 + [False] * 4
        assert "more than 5 requests in a second" in answers[-1]["error"]


def test_who_falls_silent_loses_control(policy):
    with serving(policy, idle_timeout_s=0.3) as (address, one):
        remote = RemotePolicy(address)
        assert one.health()["acting_clients"]
        deadline = time.monotonic() + 5
        while one.health()["clients"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not one.health()["acting_clients"]
        remote.close()


def test_who_sends_a_greeting_byte_by_byte_is_hung_up_on(policy):
    with serving(policy, idle_timeout_s=0.4) as (address, _):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 5) as slow:
            begin = time.monotonic()
            with contextlib.suppress(OSError):
                for byte in pack(HELLO):
                    slow.sendall(bytes([byte]))
                    time.sleep(0.05)
            assert time.monotonic() - begin < 3.0  # of 5 s that it would take


def test_a_body_longer_than_any_good_request_is_not_read(policy):
    with serving(policy, max_batch_size=2) as (address, one):
        most = one.spec.body_bytes
        assert most < wire.BODY_BYTES
        long = wire.PREFIX.pack(wire.MAGIC, 2, most + 1) + b"{}"
        hello, refused = talk(address, [pack(HELLO), long])
        assert hello["ok"]
        assert f"at most {wire.HEAD_BYTES} and {most}; the connection ends" in refused["error"]


def test_a_fault_of_our_own_ends_the_connection_and_tells_nobody_more(policy, caplog):
    class Broken(Wrapped):
        def act(self, obs, state, noise, prefix=None):
            raise RuntimeError("secret path /root")

    with serving(Broken(policy)) as (address, one):
        refused = pytest.raises(ValueError, match="does not answer")
        with RemotePolicy(address) as remote, refused as caught:
            remote.act(*given(policy))
        assert "secret" not in str(caught.value)
        with RemotePolicy(address, role="watch") as watcher:
            assert watcher.health()["decisions"] == 0
        assert one.stopped.is_set() is False
    assert "secret path" in caplog.text


def test_nobody_there_is_one_sentence(tmp_path):
    for at in (f"unix:{tmp_path / 'none'}", "127.0.0.1:9", "nonsense"):
        with pytest.raises(
            ValueError, match="no policy server there .* start one with `vla serve`"
        ):
            RemotePolicy(at)


def test_tokens_are_long_and_not_for_others(tmp_path):
    path = tmp_path / "token"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="a token of 5 characters, expected 16"):
        serve.read_token(path)
    path.write_text(TOKEN)
    assert serve.read_token(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others can read the token; chmod 600"):
        serve.read_token(path)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_stop(exported, policy, tmp_path, how):
    at = f"unix:{tmp_path / 's'}"
    line = [sys.executable, "-m", "vla.cli", "serve", str(exported["remembers"]), "--address", at]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "served at" in process.stdout.readline()
    with RemotePolicy(at) as remote:
        same(remote.act(*given(policy)), policy.act(*given(policy)))
        assert remote.about == {"task": "reach", "step": 7, "target": "onnxruntime"}
        process.send_signal(how)
        said, errors = process.communicate(timeout=20)
    assert (process.returncode, said, errors) == (0, "stopped\n", "")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("guided", [False, True])
def test_a_prefix_travels_with_the_request(policy, guided):
    obs, state, noise = given(policy)
    _, chunk, channels = policy.noise_shape
    values = np.full((1, chunk, channels), 0.2, np.float32)
    weight = (np.arange(chunk)[None] < 2).astype(np.float32)
    if guided:
        weight = np.maximum(weight, np.float32(0.25))
    prefix = Prefix(values=values, mask=weight, guided=guided)
    with serving(policy) as (at, _), RemotePolicy(at) as remote:
        assert remote.max_prefix_len == policy.max_prefix_len
        same(remote.act(obs, state, noise, prefix), policy.act(obs, state, noise, prefix))
        same(remote.act(obs, state, noise), policy.act(obs, state, noise))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"prefix_values": 0.0}, "'prefix_weight' is missing"),
        ({"prefix_values": 0.0, "prefix_weight": 2.0}, "prefix_weight: is above 1"),
        ({"prefix_values": np.nan, "prefix_weight": 0.0}, "prefix_values: is not finite"),
        ({"prefix_values": 0.0, "prefix_weight": 0.5}, "the mask is not 1 for the first actions"),
        (dict.fromkeys(("prefix_values", "prefix_weight", "guide_values", "guide_weight"), 0.0),
         "send one of them"),
    ],
)  # fmt: skip
def test_a_prefix_that_makes_no_sense_is_refused(policy, given_, said):
    _, chunk, channels = policy.noise_shape
    shapes = {"values": (1, chunk, channels), "weight": (1, chunk)}
    arrays = {
        name: np.full(shapes[name.split("_")[1]], value, np.float32)
        for name, value in given_.items()
    }
    with serving(policy) as (at, one):
        answers = talk(at, [pack(HELLO), request(policy, **arrays)])
        assert not answers[1]["ok"]
        assert said in answers[1]["error"]
        assert one.health()["decisions"] == 0
