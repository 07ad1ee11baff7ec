"""Samples the sequences or decisions of an `EpisodeStore` that make up a batch; numpy only.

`training.data.batches` builds the batch. Generators are arguments or part of a stream's state, so a
stream of batches can be saved and resumed bit-identically.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vla.data.store import EpisodeStore

_MOVING_SHARE_OF_RANGE = 0.005
"""A channel moves if it changes by more than this share of its range in one control step."""


def motion_weights(store: EpisodeStore, horizon: int) -> np.ndarray:
    """Return for every decision the share of its next `horizon` actions that move the arm, f32 `f`.

    A step moves if some channel's target changes by more than 0.5 % of the range that channel has
    in the data set; steps beyond the end of the episode do not count.
    """
    span = np.ptp(store.actions, axis=0)
    change = np.abs(np.diff(store.actions, axis=0, prepend=store.actions[:1]))
    change[store.step_offsets[:-1]] = 0.0  # the first step of an episode has no predecessor
    moves = np.any(change > _MOVING_SHARE_OF_RANGE * span, axis=1)
    total = np.concatenate([[0], np.cumsum(moves)])
    episode = store.frame_episode
    begin = store.rows(episode, store.frame_time)
    end = np.minimum(begin + horizon, store.step_offsets[episode + 1])
    return ((total[end] - total[begin]) / (end - begin)).astype(np.float32)


def draw_weighted(weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Sample `count` (at most t) different columns of each row, i64 `b count`, with probability
    proportional to `weight`, f32 `b t`, at least 0; columns of weight 0 are taken last.

    Gumbel top-k (Kool et al. 2019, "Stochastic Beams and Where to Find Them").
    """
    if not 0 < count <= weight.shape[1]:
        raise ValueError(f"expected a count from 1 to {weight.shape[1]} columns, got {count}")
    with np.errstate(divide="ignore"):
        score = np.log(weight) + rng.gumbel(size=weight.shape)
    return np.argsort(-score, axis=1, kind="stable")[:, :count]


class SequenceStream:
    """An endless stream of batches of sequences, every sequence once per epoch.

    Batches mix sequence lengths as the data do, because batch statistics need both short and long
    sequences. The last batch of an epoch may be smaller.

    Args:
        sequences: i64 `q`, sequences to sample; not empty.
        batch: Sequences per batch.
        seed: Seed of the order.
    """

    def __init__(self, sequences: np.ndarray, batch: int, seed: int) -> None:
        if not len(sequences):
            raise ValueError("got no sequences, expected at least one")
        self._sequences, self._batch = sequences, batch
        self._rng = np.random.default_rng(seed)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch_state = self._rng.bit_generator.state
        self._order = self._rng.permutation(self._sequences)
        self._served = 0

    def next(self) -> np.ndarray:
        """Return the sequences of the next batch, i64 `b`."""
        if self._served >= len(self._order):
            self._begin_epoch()
        self._served += self._batch
        return self._order[self._served - self._batch : self._served]

    def state(self) -> dict[str, Any]:
        """Return the position of the stream as JSON types."""
        return {"epoch": self._epoch_state, "served": self._served}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of a stream with the same arguments."""
        self._rng.bit_generator.state = state["epoch"]
        self._begin_epoch()
        self._served = state["served"]


class MixedStream:
    """An endless stream of batches of which every part comes from a stream of its own.

    Args:
        streams: The streams, each with the size of its part.
    """

    def __init__(self, streams: Sequence[SequenceStream]) -> None:
        self._streams = tuple(streams)

    def next(self) -> np.ndarray:
        """Return the sequences of the next batch, i64 `b`, part after part."""
        return np.concatenate([stream.next() for stream in self._streams])

    def state(self) -> list[dict[str, Any]]:
        """Return the positions of the streams as JSON types."""
        return [stream.state() for stream in self._streams]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Continue from a state of a stream with the same arguments."""
        for stream, position in zip(self._streams, state, strict=True):
            stream.restore(position)


def shares(size: int, weights: Sequence[float]) -> list[int]:
    """Return how `size` is divided in proportion to weights, with at least 1 for each.

    Raises:
        ValueError: there are more weights than can have a share.
    """
    if size < len(weights):
        raise ValueError(
            f"batch_size: got {size}, expected at least {len(weights)}, one for each of the tasks"
        )
    exact = np.asarray(weights) / np.sum(weights) * size
    parts = np.maximum(np.floor(exact).astype(int), 1)
    while parts.sum() != size:  # the largest remainder first
        step = 1 if parts.sum() < size else -1
        gap = np.where((parts > 1) | (step > 0), step * (exact - parts), -np.inf)
        parts[int(gap.argmax())] += step
    return [int(part) for part in parts]


def no_longer_than(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Return the sequences of at most `limit` decisions, i64, given the lengths of all, i64 `q`.

    Raises:
        ValueError: no sequence is short enough.
    """
    short = np.flatnonzero(lengths <= limit)
    if not len(short):
        raise ValueError(
            f"no sequence has at most {limit} decisions, the shortest has {lengths.min()}; raise "
            "algo.short_decisions, or set it to 0"
        )
    return short
