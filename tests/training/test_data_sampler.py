"""Batches: what is drawn, and that a stream continues to the bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.sampler import (
    MixedStream,
    SequenceStream,
    draw_weighted,
    motion_weights,
    no_longer_than,
    shares,
)
from vla.data.store import EpisodeStore, load_episodes


@pytest.fixture(scope="module")
def store(fake_dataset: Path) -> EpisodeStore:
    return load_episodes(fake_dataset, image_hw=(32, 32), stride=2)


def test_every_sequence_comes_once_per_epoch(store: EpisodeStore) -> None:
    stream = SequenceStream(np.arange(5), batch=2, seed=0)
    drawn = np.concatenate([stream.next() for _ in range(3)])
    assert sorted(drawn.tolist()) == [0, 1, 2, 3, 4]


def test_a_limit_leaves_longer_sequences_out() -> None:
    lengths = np.array([3, 9, 4])
    assert no_longer_than(lengths, 4).tolist() == [0, 2]
    with pytest.raises(ValueError, match="at most 2 decisions, the shortest has 3"):
        no_longer_than(lengths, 2)


def test_a_stream_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        SequenceStream(np.array([], np.int64), batch=2, seed=0)


def test_a_restored_stream_continues_to_the_bit_across_epochs() -> None:
    sequences = np.arange(40)
    stream = SequenceStream(sequences, batch=8, seed=3)
    for _ in range(7):  # five batches per epoch: two into the second
        stream.next()
    state = json.loads(json.dumps(stream.state()))
    expected = [stream.next() for _ in range(20)]
    other = SequenceStream(sequences, batch=8, seed=99)
    other.restore(state)
    for batch in expected:
        np.testing.assert_array_equal(other.next(), batch)


def test_motion_weight_is_the_share_of_steps_that_move(fake_dataset: Path) -> None:
    store = load_episodes(fake_dataset, image_hw=(8, 8))
    actions = store.actions
    actions[:] = 0.0
    actions[3:5, 0] = (1.0, 2.0)  # steps 3 and 4 move, and step 5 back to 0 does too
    weights = motion_weights(store, horizon=4)
    # Chunks of steps 0-3, 1-4, 2-5, 3-6, ... hold 1, 2, 3, 3, 2, 1, 0 moving steps.
    assert weights[:7].tolist() == [0.25, 0.5, 0.75, 0.75, 0.5, 0.25, 0.0]
    assert not weights[store.seq_offsets[1] :].any()


def test_weighted_draws_are_distinct_and_prefer_heavy_columns() -> None:
    rng = np.random.default_rng(0)
    weight = np.tile(np.array([[1.0, 3.0, 0.0, 0.0]], np.float32), (4000, 1))
    drawn = draw_weighted(weight, 2, rng)
    assert set(map(tuple, np.sort(drawn, axis=1).tolist())) == {(0, 1)}
    assert np.mean(drawn[:, 0] == 1) == pytest.approx(0.75, abs=0.03)  # 3 / (1 + 3)


def test_a_mixed_stream_serves_every_part_and_goes_on_to_the_bit() -> None:
    parts = np.arange(10), np.arange(10, 13)

    def stream() -> MixedStream:
        return MixedStream([SequenceStream(parts[0], 3, 0), SequenceStream(parts[1], 1, 2)])

    mixed = stream()
    for _ in range(4):
        batch = mixed.next()
        assert set(batch[-1:]) <= set(parts[1])
        assert set(batch[:-1]) <= set(parts[0])
    state = json.loads(json.dumps(mixed.state()))
    again = stream()
    again.restore(state)
    for _ in range(6):
        np.testing.assert_array_equal(again.next(), mixed.next())


@given(
    st.integers(1, 200), st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8),
)  # fmt: skip
def test_shares_add_up_and_none_is_empty(size: int, weights: list[float]) -> None:
    if size < len(weights):
        with pytest.raises(ValueError, match=f"batch_size: got {size}"):
            shares(size, weights)
        return
    parts = shares(size, weights)
    assert sum(parts) == size
    assert min(parts) >= 1
    exact = np.array(weights) / sum(weights) * size
    if exact.min() >= 1:
        assert np.abs(parts - exact).max() < 1


def test_shares_are_in_proportion() -> None:
    assert shares(32, [0.5, 0.25, 0.25]) == [16, 8, 8]
    assert shares(10, [0.98, 0.01, 0.01]) == [8, 1, 1]
