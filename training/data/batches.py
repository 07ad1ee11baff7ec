"""Makes `EpisodeBatch`es of an `EpisodeStore`: whole episodes, or single decisions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from training.data import augment
from training.data.sampler import draw_weighted
from training.team import Part
from vla.contracts.types import EpisodeBatch, Share
from vla.data.store import EpisodeStore

Features = Mapping[str, np.ndarray]
"""What a frozen backbone made of all frames of a store, by name (`training.data.features`)."""


def episode_batch(
    store: EpisodeStore, sequences: np.ndarray, chunk: int, queries: int, weights: np.ndarray,
    rng: np.random.Generator, features: Features | None = None, part: Part | None = None,
) -> EpisodeBatch:  # fmt: skip
    """Return every decision of some sequences, a few of which carry a loss.

    Args:
        store: Where they lie.
        sequences: i64 [b].
        chunk: K, actions per decision.
        queries: Decisions per sequence that carry a loss; all of a shorter one.
        weights: f32 [f], with which decisions are drawn to carry a loss.
        rng: Source of randomness.
        features: What stands for the pictures of all frames of the store.
        part: Whose share to return; all if None.
    """
    lengths = store.seq_lengths[sequences]
    within = np.arange(lengths.max())
    valid = within < lengths[:, None]
    frames = (store.seq_offsets[sequences][:, None] + within)[valid]
    row, decision = np.nonzero(valid)
    share = np.zeros(valid.shape, np.float32)
    share[valid] = weights[frames]
    chosen = draw_weighted(share, min(queries, len(within)), rng)
    flat = np.cumsum(valid).reshape(valid.shape) - 1  # place of each valid decision among frames
    kept = np.take_along_axis(valid, chosen, 1)
    query = np.take_along_axis(flat, chosen, 1)[kept]
    tasks = tuple(store.tasks[e] for e in store.seq_episode[sequences])
    found = _Chosen(frames, row, decision, np.sort(query), tasks)
    return _batch(store, found, chunk, features, part)


def window_batch(
    store: EpisodeStore, frames: np.ndarray, chunk: int, features: Features | None = None,
    part: Part | None = None,
) -> EpisodeBatch:  # fmt: skip
    """Return single decisions, each an episode of its own; frames i64 [b] are rows of the store."""
    episode = store.frame_episode[frames]
    index = np.arange(len(frames))
    tasks = tuple(store.tasks[e] for e in episode)
    chosen = _Chosen(frames, index, np.zeros_like(index), index, tasks)
    return _batch(store, chosen, chunk, features, part)


def shaken(
    batch: EpisodeBatch, shift_px: int, gain: float, rng: np.random.Generator
) -> EpisodeBatch:
    """Return a batch with its pictures shifted and brightened, episode by episode.

    Args:
        batch: What to learn from.
        shift_px: Largest shift.
        gain: Largest change of brightness, as a share.
        rng: Source of randomness.
    """
    if not (shift_px or gain):
        return batch
    images, row, share = batch.images.numpy(), batch.row.numpy(), batch.share
    first, rows = (share.row, share.rows) if share else (0, 0)
    moved = augment.shaken(
        images, row, shift_px=shift_px, gain=gain, rng=rng, first=first, rows=rows
    )
    return replace(batch, images=torch.from_numpy(moved))


class _Chosen(NamedTuple):
    """What is in a batch, as places in a store and in each other; see `EpisodeBatch`."""

    frames: np.ndarray
    row: np.ndarray
    decision: np.ndarray
    query: np.ndarray
    tasks: tuple[str, ...]

    def share(self, part: Part) -> tuple["_Chosen", Share]:
        """Return a process's share of it."""
        rows = len(self.tasks)
        begin, end = part.range(rows)
        own = (self.row >= begin) & (self.row < end)
        asked = own[self.query]
        before = int((self.row < begin).sum())
        share = Share(begin, rows, int((self.row[self.query] < begin).sum()), len(self.query),
                      float(len(self.query)))  # fmt: skip
        return _Chosen(
            self.frames[own], self.row[own] - begin, self.decision[own],
            self.query[asked] - before, self.tasks[begin:end] or self.tasks[:1],
        ), share  # fmt: skip


def _batch(
    store: EpisodeStore, chosen: _Chosen, chunk: int, features: Features | None,
    part: Part | None,
) -> EpisodeBatch:  # fmt: skip
    share = None
    if part is not None:
        chosen, share = chosen.share(part)
    frames, row, decision, query, tasks = chosen
    episode, time = store.frame_episode[frames], store.frame_time[frames]
    actions, pad = store.action_chunks(episode[query], time[query], chunk)
    arrays = {
        "images": store.frames[frames] if features is None else _unseen(store, len(frames)),
        "proprio": store.state_at(episode, time),
        "now": time.astype(np.float32),
        "row": row,
        "decision": decision,
        "query": query,
        "actions": actions,
        "pad": pad,
        "weight": np.ones(len(query), np.float32),
    }
    seen = None
    if features is not None:
        seen = {name: torch.from_numpy(part[frames]) for name, part in features.items()}
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}
    return EpisodeBatch(task=tasks, features=seen, share=share, **tensors)


def _unseen(store: EpisodeStore, count: int) -> np.ndarray:
    """Return pictures u8 [n, v, 0, 0, 3]."""
    return np.zeros((count, store.frames.shape[1], 0, 0, 3), np.uint8)
