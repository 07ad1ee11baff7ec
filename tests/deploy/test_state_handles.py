"""Memory that stays with the server: the one that the client means, or the whole is sent."""

import numpy as np
import pytest

from deploy.server import client
from deploy.server.client import RemotePolicy
from tests.served import Wrapped, given, same, serving
from vla.contracts.types import PolicyState

NAMES = ("slot_tokens", "slot_time", "slot_count")


def with_tokens(state, tokens):
    """Return a state with other contents of its slots."""
    return PolicyState(tensors={**state.tensors, "slot_tokens": tokens})


@pytest.fixture
def sent(monkeypatch):
    """Requests to act that clients sent: which memory they named, and the arrays they brought."""
    found = []
    ask = RemotePolicy._ask

    def spied(self, say, arrays=None):
        if say["do"] == "act":
            found.append((say.get("continues"), set(arrays)))
        return ask(self, say, arrays)

    monkeypatch.setattr(RemotePolicy, "_ask", spied)
    return found


def episode(policy, acting, decisions, seed=0):
    """Return what `acting` decides in an episode of its own, and the policy for the same."""
    pairs, ours, theirs = [], policy.initial_state(1), acting.initial_state(1)
    for k in range(decisions):
        obs, _, noise = given(policy, time_s=0.8 * k, seed=100 * seed + k)
        pairs.append((policy.act(obs, ours, noise), acting.act(obs, theirs, noise)))
        ours, theirs = pairs[-1][0][1], pairs[-1][1][1]
    return pairs


def raw(remote, policy, sequence, seed, **changes):
    """Ask for a decision in the middle of an episode, with memory named instead of sent."""
    obs, _, noise = given(policy, time_s=0.8, seed=seed)
    say = {"do": "act", "sequence": sequence, "age_s": 0.0, "task": list(obs.task), **changes}
    arrays = {
        "images": obs.images, "image_ok": obs.image_ok, "proprio": obs.proprio,
        "time_s": obs.time_s, "noise": noise,
    }  # fmt: skip
    return remote._ask(say, arrays), (obs, noise)


def test_memory_is_sent_once_and_then_named_and_decisions_stay_those_of_the_policy(policy, sent):
    with serving(policy) as (address, one), RemotePolicy(address) as remote:
        for ours, theirs in episode(policy, remote, 12):
            same(ours, theirs)
        assert [named for named, _ in sent] == [None, *range(11)]
        assert set(NAMES) <= sent[0][1]
        assert all(not set(NAMES) & arrays for _, arrays in sent[1:])
        assert one.health()["refused"] == 0


def test_another_memory_than_the_last_answers_is_sent_whole(policy, sent):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        states = [theirs[1] for _, theirs in episode(policy, remote, 4)]
        changed = states[3]["slot_tokens"].copy()
        changed[0, 0, 0, 0] = np.nextafter(changed[0, 0, 0, 0], np.float32(9))  # by one bit
        others = [states[1], with_tokens(states[3], changed)]
        obs, _, noise = given(policy, time_s=3.2, seed=9)
        for other in others:
            sent.clear()
            same(policy.act(obs, other, noise), remote.act(obs, other, noise))
            assert [named for named, _ in sent] == [None]


def test_what_a_caller_does_to_an_answers_arrays_is_not_taken_for_the_servers_memory(policy, sent):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        state = episode(policy, remote, 3)[-1][1][1]
        state["slot_tokens"][:] += 1
        obs, _, noise = given(policy, time_s=2.4, seed=9)
        same(policy.act(obs, state, noise), remote.act(obs, state, noise))
        assert sent[-1][0] is None


def test_where_the_server_has_lost_the_memory_the_client_sends_the_whole_once(policy, sent):
    with serving(policy) as (address, one), RemotePolicy(address) as remote:
        state = episode(policy, remote, 3)[-1][1][1]
        next(iter(one.acting)).held = None
        sent.clear()
        obs, _, noise = given(policy, time_s=2.4, seed=9)
        same(policy.act(obs, state, noise), remote.act(obs, state, noise))
        assert [named for named, _ in sent] == [2, None]
        assert one.health()["refused"] == 1
        assert one.health()["decisions"] == 4


def test_a_request_that_is_repeated_or_names_an_older_memory_is_refused(policy):
    with serving(policy) as (address, one), RemotePolicy(address) as remote:
        start = given(policy)
        _, state = remote.act(*start)  # request 0
        (told, found), (obs, noise) = raw(remote, policy, 1, seed=5, continues=0)
        chunk, new = policy.act(obs, state, noise)
        assert told["sequence"] == 1
        np.testing.assert_array_equal(found["values"], chunk.values)
        np.testing.assert_array_equal(found["slot_tokens"], new["slot_tokens"])
        with pytest.raises(ValueError, match="sequence 1 after 1; count up"):
            raw(remote, policy, 1, seed=5, continues=0)
        for i, named in enumerate((0, 2, -1, "1", None, True, 1.0)):
            with pytest.raises(client._StateNotHeld, match="is not held here; send it whole"):
                raw(remote, policy, 2 + i, seed=5, continues=named)
        assert one.health()["decisions"] == 2


def test_a_memory_is_named_or_sent_and_never_both_and_has_as_many_rows_as_the_request(policy):
    with serving(policy) as (address, _), RemotePolicy(address) as remote:
        obs, start, noise = given(policy, rows=2)
        remote.act(obs, start, noise)
        with pytest.raises(ValueError, match=r"got float32 \(2, 7.*, expected float32 \(1, 7"):
            raw(remote, policy, 1, seed=0, continues=0)
        obs, start, noise = given(policy, rows=2, time_s=0.8)
        arrays = start.tensors | {
            "images": obs.images, "image_ok": obs.image_ok, "proprio": obs.proprio,
            "time_s": obs.time_s, "noise": noise,
        }  # fmt: skip
        say = {"do": "act", "sequence": 2, "age_s": 0.0, "task": list(obs.task), "continues": 0}
        with pytest.raises(ValueError, match="is missing or unknown"):
            remote._ask(say, arrays)


def test_nobody_goes_on_from_the_memory_of_an_earlier_connection(policy, sent):
    with serving(policy) as (address, one):
        with RemotePolicy(address) as remote:
            state = episode(policy, remote, 3)[-1][1][1]
            talk = next(iter(one.acting))
            assert talk.held is not None
        while one.health()["clients"]:
            pass
        assert talk.held is None  # dropped with the connection
        with RemotePolicy(address) as again:
            with pytest.raises(client._StateNotHeld, match="is not held here"):
                raw(again, policy, 0, seed=1, continues=2)
            again.sequence = 2
            sent.clear()
            obs, _, noise = given(policy, time_s=2.4, seed=9)
            same(policy.act(obs, state, noise), again.act(obs, state, noise))
            assert [named for named, _ in sent] == [None]


def test_two_clients_that_count_alike_each_go_on_from_their_own(policy):
    with (
        serving(policy, max_clients=2) as (address, _),
        RemotePolicy(address) as a, RemotePolicy(address) as b,
    ):  # fmt: skip
        states = [remote.act(*given(policy, seed=i))[1] for i, remote in enumerate((a, b))]
        assert (states[0]["slot_tokens"] != states[1]["slot_tokens"]).any()
        for remote, state in zip((a, b), states, strict=True):
            (_, found), (obs, noise) = raw(remote, policy, 1, seed=7, continues=0)
            chunk, new = policy.act(obs, state, noise)
            np.testing.assert_array_equal(found["values"], chunk.values)
            np.testing.assert_array_equal(found["slot_tokens"], new["slot_tokens"])


def test_a_decision_that_fails_leaves_no_memory_behind(policy):
    class Fails(Wrapped):
        due = False

        def act(self, obs, state, noise, prefix=None):
            if self.due:
                state["slot_tokens"][:] = 7.0  # before it fails
                raise ValueError("not today")
            return policy.act(obs, state, noise)

    fails = Fails(policy)
    with serving(fails) as (address, _), RemotePolicy(address) as remote:
        state = episode(policy, remote, 2)[-1][1][1]
        obs, _, noise = given(policy, time_s=1.6, seed=9)
        fails.due = True
        with pytest.raises(ValueError, match="not today"):
            remote.act(obs, state, noise)
        fails.due = False
        same(policy.act(obs, state, noise), remote.act(obs, state, noise))


def test_a_memory_that_is_not_finite_is_not_gone_on_from(policy):
    class Explodes(Wrapped):
        def act(self, obs, state, noise, prefix=None):
            chunk, new = policy.act(obs, state, noise)
            return chunk, with_tokens(new, np.full_like(new["slot_tokens"], np.nan))

    refused = pytest.raises(ValueError, match="slot_tokens is not finite; hold the arm")
    with serving(Explodes(policy)) as (address, _), RemotePolicy(address) as remote, refused:
        remote.act(*given(policy))
