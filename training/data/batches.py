"""Builds `EpisodeBatch`es from an `EpisodeStore`: whole episodes, or single decisions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from training.core.distributed import Partition
from training.data import augment
from training.data.sampler import draw_weighted
from vla.contracts import referents
from vla.contracts.types import BatchShard, EpisodeBatch
from vla.data import check
from vla.data.store import EpisodeStore, load_episodes
from vla.policies.vla import VLAPolicy

Features = Mapping[str, np.ndarray]
"""Outputs of a frozen backbone for all frames of a store, by name (`training.data.features`)."""
Source: TypeAlias = Features | Tensor | None
"""What stands for the frames of a store: features, or all of them on a device
(`load_on_device`)."""
LOADED_AT_ONCE = 4096
"""Frames that are copied to a device at once."""


def load_for_policy(policy: VLAPolicy, dataset: Path, phase_seed: int) -> EpisodeStore:
    """Return the decisions of a data set that a policy learns from: with a memory those of its
    cadence; without, every step can stand for a decision.
    """
    side = policy.config.backbone.image_px
    store = load_episodes(
        dataset, cameras=policy.config.cameras, image_hw=(side, side),
        stride=policy.n_action_steps if policy.remembers else 1, phase_seed=phase_seed, phases=1,
        cache_dir=dataset.parent / f"{dataset.name}-cache",
    )  # fmt: skip
    check.fits_robot(store, policy.robot, dataset)
    return store


def load_on_device(store: EpisodeStore, device: str) -> Tensor:
    """Return all frames of a store on a device, u8 [f, v, h, w, 3].

    Raises:
        ValueError: they do not fit.
    """
    count = len(store.frames)
    try:
        frames = torch.empty(store.frames.shape, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        needed = math.prod(store.frames.shape) / 1e9
        raise ValueError(
            f"frames_on_device: {count} frames need {needed:.1f} GB, which {device} has not free; "
            "leave --frames-on-device out, or learn from fewer episodes"
        ) from error
    for begin in range(0, count, LOADED_AT_ONCE):
        rows = np.arange(begin, min(begin + LOADED_AT_ONCE, count))
        frames[begin : begin + len(rows)] = torch.from_numpy(store.images(rows)).to(device)
    return frames


def episode_batch(
    store: EpisodeStore, sequences: np.ndarray, chunk_size: int, num_states: int,
    weights: np.ndarray, rng: np.random.Generator, source: Source = None,
    partition: Partition | None = None,
) -> EpisodeBatch:  # fmt: skip
    """Return every decision of some sequences; a sample of the decisions carries a loss.

    Args:
        store: The data set.
        sequences: i64 [b].
        chunk_size: K, actions per decision.
        num_states: Decisions per sequence that carry a loss; all of a shorter sequence.
        weights: f32 [f], sampling weight of each decision of the store.
        rng: Source of randomness.
        source: Cached features of all frames of the store, or the frames on a device; None for the
            store's.
        partition: Return this process's part of the batch; all of it if None.
    """
    lengths = store.seq_lengths[sequences]
    within = np.arange(lengths.max())
    valid = within < lengths[:, None]
    frames = (store.seq_offsets[sequences][:, None] + within)[valid]
    episode, decision = np.nonzero(valid)
    padded = np.zeros(valid.shape, np.float32)
    padded[valid] = weights[frames]
    columns = draw_weighted(padded, min(num_states, len(within)), rng)
    flat = np.cumsum(valid).reshape(valid.shape) - 1  # index of each valid decision among frames
    loss = np.take_along_axis(flat, columns, 1)[np.take_along_axis(valid, columns, 1)]
    tasks = tuple(store.tasks[e] for e in store.seq_episode[sequences])
    indices = _Indices(frames, episode, decision, np.sort(loss), tasks)
    return _batch(store, indices, chunk_size, source, partition)


def frame_batch(
    store: EpisodeStore, frames: np.ndarray, chunk_size: int, source: Source = None,
    partition: Partition | None = None,
) -> EpisodeBatch:  # fmt: skip
    """Return single decisions as episodes of length 1; frames i64 [b] are rows of the store."""
    index = np.arange(len(frames))
    tasks = store.instructions_at(store.frame_episode[frames], store.frame_time[frames])
    indices = _Indices(frames, index, np.zeros_like(index), index, tasks)
    return _batch(store, indices, chunk_size, source, partition)


def augment_batch(
    batch: EpisodeBatch, shift_px: int, brightness: float, rng: np.random.Generator
) -> EpisodeBatch:
    """Return a batch with images of episodes changed by `augment.shift_and_brighten`."""
    if not (shift_px or brightness):
        return batch
    first, count = batch.shard[:2] if batch.shard else (0, 0)
    pixels = batch.images if batch.images.device.type != "cpu" else batch.images.numpy()
    images, moved = augment.shift_and_brighten(
        pixels, batch.episode_index.numpy(), shift_px=shift_px,
        brightness=brightness, rng=rng, first=first, count=count,
    )  # fmt: skip
    batch = replace(batch, images=torch.as_tensor(images))
    if batch.referents is None:
        return batch
    of_loss = batch.episode_index[batch.loss_index].numpy()
    height, width = images.shape[2:4]
    offset = 2.0 * moved[of_loss] / np.array([width, height], np.float32)
    return replace(batch, referents=batch.referents + torch.from_numpy(offset)[:, :, None])


class _Indices(NamedTuple):
    """Contents of a batch as indices into a store and into each other; see `EpisodeBatch`."""

    frames: np.ndarray
    episode: np.ndarray
    decision: np.ndarray
    loss: np.ndarray
    tasks: tuple[str, ...]

    def part(self, partition: Partition) -> tuple["_Indices", BatchShard]:
        """Return one process's part."""
        count = len(self.tasks)
        begin, end = partition.range(count)
        inside = (self.episode >= begin) & (self.episode < end)
        loss_inside = inside[self.loss]
        before = int((self.episode < begin).sum())
        shard = BatchShard(
            begin, count, int((self.episode[self.loss] < begin).sum()), len(self.loss),
            float(len(self.loss)),
        )  # fmt: skip
        return _Indices(
            self.frames[inside], self.episode[inside] - begin, self.decision[inside],
            self.loss[loss_inside] - before, self.tasks[begin:end] or self.tasks[:1],
        ), shard  # fmt: skip


def _batch(
    store: EpisodeStore, indices: _Indices, chunk_size: int, source: Source,
    partition: Partition | None,
) -> EpisodeBatch:  # fmt: skip
    shard = None
    if partition is not None:
        indices, shard = indices.part(partition)
    frames, loss = indices.frames, indices.loss
    episode, time = store.frame_episode[frames], store.frame_time[frames]
    actions, action_is_pad = store.action_chunks(episode[loss], time[loss], chunk_size)
    arrays = {
        "proprio": store.state_at(episode, time), "step_index": time.astype(np.float32),
        "episode_index": indices.episode, "decision": indices.decision, "loss_index": loss,
        "actions": actions, "action_is_pad": action_is_pad,
        "weight": np.ones(len(loss), np.float32),
    }  # fmt: skip
    told = None if store.info.frame_text is None else store.instructions_at(episode, time)
    where = referents.read(store.scalars, store.rows(episode[loss], time[loss]), store.cameras)
    if where is not None:
        arrays["referents"] = where
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    cached = None
    if isinstance(source, Tensor):
        tensors["images"] = source[torch.from_numpy(frames).to(source.device)]
    elif source is not None:
        cached = {name: torch.from_numpy(values[frames]) for name, values in source.items()}
        tensors["images"] = torch.zeros(len(frames), len(store.cameras), 0, 0, 3).byte()
    else:
        tensors["images"] = torch.from_numpy(store.images(frames))
    return EpisodeBatch(
        task=indices.tasks, frame_task=told, features=cached, shard=shard, **tensors
    )
