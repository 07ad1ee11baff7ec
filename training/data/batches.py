"""Makes `EpisodeBatch`es of an `EpisodeStore`: whole episodes, or single decisions."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from training.data import augment
from training.data.sampler import draw_weighted
from vla.contracts.types import EpisodeBatch
from vla.data.store import EpisodeStore

Features = Mapping[str, np.ndarray]
"""What a frozen backbone made of all frames of a store, by name (`training.data.features`)."""


def episode_batch(
    store: EpisodeStore, sequences: np.ndarray, chunk: int, queries: int, weights: np.ndarray,
    rng: np.random.Generator, features: Features | None = None,
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
    return _batch(store, frames, row, decision, tasks, np.sort(query), chunk, features)


def window_batch(
    store: EpisodeStore, frames: np.ndarray, chunk: int, features: Features | None = None
) -> EpisodeBatch:
    """Return single decisions, each an episode of its own; frames i64 [b] are rows of the store."""
    episode = store.frame_episode[frames]
    index = np.arange(len(frames))
    tasks = tuple(store.tasks[e] for e in episode)
    return _batch(store, frames, index, np.zeros_like(index), tasks, index, chunk, features)


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
    images, row = batch.images.numpy(), batch.row.numpy()
    moved = augment.shaken(images, row, shift_px=shift_px, gain=gain, rng=rng)
    return replace(batch, images=torch.from_numpy(moved))


def _batch(
    store: EpisodeStore, frames: np.ndarray, row: np.ndarray, decision: np.ndarray,
    tasks: tuple[str, ...], query: np.ndarray, chunk: int, features: Features | None,
) -> EpisodeBatch:  # fmt: skip
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
    return EpisodeBatch(task=tasks, features=seen, **tensors)


def _unseen(store: EpisodeStore, count: int) -> np.ndarray:
    """Return pictures u8 [n, v, 0, 0, 3]."""
    return np.zeros((count, store.frames.shape[1], 0, 0, 3), np.uint8)
