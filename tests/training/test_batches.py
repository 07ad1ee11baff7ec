"""Batches against a plain loop over the data set."""

from pathlib import Path

import numpy as np
import pytest

from training.data import batches
from vla.data.store import EpisodeStore, load_episodes

CHUNK = 4


@pytest.fixture(scope="module")
def store(fake_dataset: Path) -> EpisodeStore:
    return load_episodes(fake_dataset, image_hw=(16, 16), stride=2)


def make(store: EpisodeStore, queries: int = 2, weights: np.ndarray | None = None, seed: int = 0):
    weights = np.ones(len(store.frames), np.float32) if weights is None else weights
    sequences = np.array([3, 0, 4])
    rng = np.random.default_rng(seed)
    return sequences, batches.episode_batch(store, sequences, CHUNK, queries, weights, rng)


def test_every_decision_of_the_sequences_is_there_in_order(store: EpisodeStore) -> None:
    sequences, batch = make(store)
    f = 0
    for row, sequence in enumerate(sequences):
        episode = store.seq_episode[sequence]
        assert batch.task[row] == store.tasks[episode]
        begin, end = store.seq_offsets[sequence : sequence + 2]
        for decision, frame in enumerate(range(begin, end)):
            time = store.frame_time[frame]
            assert (batch.episode_index[f], batch.decision[f], batch.step_index[f]) == (
                row,
                decision,
                time,
            )
            np.testing.assert_array_equal(batch.images[f], store.frames[frame])
            step = store.step_offsets[episode] + time
            np.testing.assert_array_equal(batch.proprio[f], store.states[step])
            f += 1
    assert f == len(batch.images)


def test_queries_carry_the_actions_that_followed_and_padding_beyond_the_end(
    store: EpisodeStore,
) -> None:
    sequences, batch = make(store, queries=100)
    assert batch.loss_index.tolist() == list(range(len(batch.images)))  # all there are, in order
    padded = 0
    for q, f in enumerate(batch.loss_index.tolist()):
        episode = store.seq_episode[sequences[batch.episode_index[f]]]
        begin, end = store.step_offsets[episode : episode + 2]
        for k in range(CHUNK):
            step = begin + int(batch.step_index[f]) + k
            padded += step >= end
            assert batch.action_is_pad[q, k] == (step >= end)
            np.testing.assert_array_equal(batch.actions[q, k], store.actions[min(step, end - 1)])
    assert padded > 0


def test_so_many_different_decisions_of_every_sequence_are_queried(store: EpisodeStore) -> None:
    _, batch = make(store, queries=2)
    rows = batch.episode_index[batch.loss_index].tolist()
    assert [rows.count(b) for b in range(3)] == [2, 2, 2]
    assert batch.loss_index.tolist() == sorted(set(batch.loss_index.tolist()))
    assert batch.weight.tolist() == [1.0] * 6


def test_the_draw_follows_the_weights_and_the_generator(store: EpisodeStore) -> None:
    weights = np.full(len(store.frames), 1e-12, np.float32)
    wanted = [store.seq_offsets[s] + 1 for s in (3, 0, 4)]
    weights[wanted] = 1.0
    _, batch = make(store, queries=1, weights=weights)
    assert batch.decision[batch.loss_index].tolist() == [1, 1, 1]
    assert any(
        make(store, seed=s)[1].loss_index.tolist() != make(store)[1].loss_index.tolist()
        for s in (1, 2)
    )
    assert make(store)[1].loss_index.tolist() == make(store)[1].loss_index.tolist()


def test_windows_are_single_decisions_each_an_episode_of_its_own(store: EpisodeStore) -> None:
    frames = np.array([5, 0, 9])
    batch = batches.frame_batch(store, frames, CHUNK)
    np.testing.assert_array_equal(batch.images, store.frames[frames])
    np.testing.assert_array_equal(batch.step_index, store.frame_time[frames])
    assert batch.episode_index.tolist() == batch.loss_index.tolist() == [0, 1, 2]
    assert batch.decision.tolist() == [0, 0, 0]
    assert batch.task == tuple(store.tasks[e] for e in store.frame_episode[frames])
