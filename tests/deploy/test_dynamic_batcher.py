"""Several clients that act at once: each gets what it would alone, whatever the others do."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deploy.commands import export
from deploy.server.client import RemotePolicy
from deploy.server.server import Limits
from tests.deploy.conftest import made, origin
from tests.served import Slow, Wrapped, given, serving
from vla.runtime import policy_loader

CLIENTS, DECISIONS = 4, 6


@pytest.fixture(scope="module")
def batched(tmp_path_factory):
    """The policy of `policy`, exported for groups of four rows."""
    folder = tmp_path_factory.mktemp("batched") / "four"
    export.export(made("remembers"), origin(), folder, batch=4)
    return policy_loader.open_policy(folder, threads=1).policy


def counted(policy):
    """Return a policy that counts the rows of its calls, and waits where it is told to."""

    class Counted(Slow):
        def __init__(self):
            super().__init__(policy)
            self.rows = []
            self.go_on.set()

        def act(self, obs, state, noise, prefix=None):
            self.rows.append(len(obs.task))
            return super().act(obs, state, noise)

    return Counted()


def together(jobs):
    """Run functions at once, each in a thread; return what they return, or raise what one does."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [one.result(60) for one in [pool.submit(job) for job in jobs]]


def episode(policy, acting, seed, rows=1):
    """Return chunks f32 [decisions, b, k, u] and the last memory's tokens of one episode."""
    state, chunks = acting.initial_state(rows), []
    for k in range(DECISIONS):
        obs, _, noise = given(policy, rows, time_s=0.8 * k, seed=100 * seed + k)
        chunk, state = acting.act(obs, state, noise)
        chunks.append(chunk.values)
    return np.stack(chunks), state["slot_tokens"]


@pytest.mark.parametrize("kind", ["policy", "batched"])
def test_four_clients_at_once_each_get_what_they_get_alone(policy, batched, kind):
    own = {"policy": policy, "batched": batched}[kind]
    count = counted(own)
    with serving(
        count, max_clients=CLIENTS, max_queue_delay_ms=200.0, max_observation_age_s=10.0
    ) as (address, one):
        remotes = [RemotePolicy(address) for _ in range(CLIENTS)]
        rows = [1, 2, 1, 3]
        found = together([lambda i=i: episode(own, remotes[i], i, rows[i]) for i in range(CLIENTS)])
        health = one.health()
        for remote in remotes:
            remote.close()
    for i in range(CLIENTS):
        chunks, tokens = episode(own, own, i, rows[i])
        np.testing.assert_allclose(found[i][0], chunks, rtol=0, atol=2e-5)
        np.testing.assert_allclose(found[i][1], tokens, rtol=0, atol=2e-5)
    assert health["acting_clients"] == CLIENTS
    assert health["decisions"] == CLIENTS * DECISIONS
    assert sum(count.rows) == DECISIONS * sum(rows)
    assert len(count.rows) < CLIENTS * DECISIONS  # some were decided together
    assert health["mean_rows"] == pytest.approx(np.mean(count.rows))


def test_who_asks_while_a_decision_runs_is_decided_with_all_others_who_do(policy):
    count = counted(policy)
    count.go_on.clear()
    with serving(count, max_clients=CLIENTS, max_observation_age_s=10.0) as (address, one):
        remotes = [RemotePolicy(address) for _ in range(CLIENTS)]
        threads = [
            threading.Thread(target=lambda r=r, i=i: r.act(*given(policy, seed=i)))
            for i, r in enumerate(remotes)
        ]
        threads[0].start()
        assert count.begun.wait(10)
        for thread in threads[1:]:
            thread.start()
        deadline = time.monotonic() + 10
        while len(one.batcher.waiting) < CLIENTS - 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with RemotePolicy(address, role="watch") as watcher:  # answered all the while
            assert watcher.health()["acting_clients"] == CLIENTS
        count.go_on.set()
        for thread in threads:
            thread.join(10)
        for remote in remotes:
            remote.close()
    assert count.rows == [1, CLIENTS - 1]


def test_no_more_rows_are_decided_together_than_the_limit(policy):
    count = counted(policy)
    with serving(
        count,
        max_clients=CLIENTS,
        max_queue_delay_ms=50.0,
        max_batch_size=1,
        max_observation_age_s=10.0,
    ) as (address, _):
        remotes = [RemotePolicy(address) for _ in range(CLIENTS)]
        together([lambda i=i: episode(policy, remotes[i], i) for i in range(CLIENTS)])
        for remote in remotes:
            remote.close()
    assert set(count.rows) == {1}


def test_what_cannot_be_decided_hurts_nobody_else(policy):
    poison = np.float32(4.5)

    class Picky(Wrapped):
        rows: list[int] = []

        def act(self, obs, state, noise, prefix=None):
            self.rows.append(len(obs.task))
            if (obs.proprio == poison).any():
                raise ValueError("joints like these I do not know")
            return policy.act(obs, state, noise)

    def ask(remote, i):
        obs, start, noise = given(policy, seed=i)
        if i == 2:
            obs.proprio[:] = poison
        if i == 3:
            obs.proprio[:] = np.nan  # refused before it joins the others
        try:
            return remote.act(obs, start, noise)[0].values
        except ValueError as error:
            return str(error)

    with serving(
        Picky(policy), max_clients=CLIENTS, max_queue_delay_ms=300.0, max_observation_age_s=10.0
    ) as (address, one):
        remotes = [RemotePolicy(address) for _ in range(CLIENTS)]
        found = together([lambda i=i: ask(remotes[i], i) for i in range(CLIENTS)])
        assert one.health()["decisions"] == 2
        for remote in remotes:
            remote.close()
    for i in (0, 1):
        np.testing.assert_array_equal(found[i], policy.act(*given(policy, seed=i))[0].values)
    assert "joints like these I do not know" in found[2]
    assert "proprio: is not finite" in found[3]


def test_one_more_controller_than_may_is_refused_until_one_leaves(policy):
    with serving(policy, max_clients=2) as (address, one):
        first, second = RemotePolicy(address), RemotePolicy(address)
        with pytest.raises(ValueError, match="another client controls"):
            RemotePolicy(address)
        first.close()
        deadline = time.monotonic() + 5
        while one.health()["acting_clients"] == 2:
            assert time.monotonic() < deadline
        with RemotePolicy(address) as third:
            third.act(*given(policy))
        second.close()


def test_who_waits_too_long_for_its_turn_is_told_to_observe_anew(policy):
    count = counted(policy)
    count.go_on.clear()
    with serving(count, max_clients=2, max_observation_age_s=0.3) as (address, one):
        remotes = [RemotePolicy(address) for _ in range(2)]
        first = threading.Thread(target=lambda: remotes[0].act(*given(policy)))
        first.start()
        assert count.begun.wait(10)
        said = []

        def second():
            with pytest.raises(ValueError, match="refuses: waited too long for its turn") as caught:
                remotes[1].act(*given(policy))
            said.append(str(caught.value))

        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        count.go_on.set()
        first.join(10)
        waiting.join(10)
        assert len(said) == 1
        assert one.health()["decisions"] == 1
        for remote in remotes:
            remote.close()


def test_a_client_that_goes_while_it_waits_takes_nobody_with_it(policy):
    count = counted(policy)
    count.go_on.clear()
    with serving(count, max_clients=3, max_observation_age_s=10.0) as (address, _):
        remotes = [RemotePolicy(address, timeout_s=0.3 if i == 1 else 10.0) for i in range(3)]
        first = threading.Thread(target=lambda: remotes[0].act(*given(policy)))
        first.start()
        assert count.begun.wait(10)
        with pytest.raises(ValueError, match="does not answer"):
            remotes[1].act(*given(policy))  # its connection is closed then
        found = []
        third = threading.Thread(
            target=lambda: found.append(remotes[2].act(*given(policy, seed=2)))
        )
        third.start()
        time.sleep(0.1)
        count.go_on.set()
        first.join(10)
        third.join(10)
        expected = policy.act(*given(policy, seed=2))[0].values
        np.testing.assert_array_equal(found[0][0].values, expected)
        for remote in remotes:
            remote.close()


@pytest.mark.parametrize(("name", "value"), [("max_clients", 0), ("max_queue_delay_ms", -1.0)])
def test_limits_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: got {value}, expected"):
        Limits(**{name: value})


def test_a_panic_fails_the_call_for_all_who_wait_and_leaves_nobody_waiting(policy, caplog):
    class PanicException(BaseException):
        """As a panic in Rust arrives in Python."""

    class Panics(Wrapped):
        healed = False

        def act(self, obs, state, noise, prefix=None):
            if not self.healed:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            return policy.act(obs, state, noise)

    def ask(remote, i):
        try:
            return remote.act(*given(policy, seed=i))[0].values
        except ValueError as error:
            return str(error)

    panics = Panics(policy)
    with serving(
        panics, max_clients=CLIENTS, max_queue_delay_ms=300.0, max_observation_age_s=10.0
    ) as (address, one):
        remotes = [RemotePolicy(address) for _ in range(CLIENTS)]
        found = together([lambda i=i: ask(remotes[i], i) for i in range(CLIENTS)])
        for said in found:
            assert "refuses: the policy failed (PanicException); hold the arm, and begin" in said
        panics.healed = True  # the connections stay, and control with them
        for i, remote in enumerate(remotes):
            expected = policy.act(*given(policy, seed=i))[0].values
            np.testing.assert_array_equal(ask(remote, i), expected)
            remote.close()
        assert one.batcher.failures >= 1
        assert not one.batcher.waiting
    assert caplog.text.count("a call of the policy failed") == 1
    assert "Option::unwrap" in caplog.text
