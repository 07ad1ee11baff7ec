"""A reward model small enough to follow by hand, frames for it, and sets of judged episodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models.core.interface import FrameScores, PairScores, Reference
from reward_models.metrics.episodes import Episodes, unpredicted
from reward_models.metrics.resample import whole
from vla.contracts.types import Frames


class BrightnessRewardModel:
    """An embedding is (brightness of the frame, brightest so far); progress is the first of them.

    Compared progress of frames counts the brightest so far, too, so that memory matters.
    """

    cameras = ("front",)

    def __init__(self) -> None:
        self.embedded: list[int] = []

    def initial_memory(self, batch: int) -> Tensor:
        return torch.zeros(batch, 1)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        self.embedded.append(len(frames.episode_index))
        bright = torch.as_tensor(frames.images).float().mean((1, 2, 3, 4)) / 255.0
        kept, found = memory.clone(), []
        for level, row, time_s in zip(bright, frames.episode_index, frames.time_s, strict=True):
            kept[row] = level if time_s == 0 else torch.maximum(kept[row], level)
            found.append(torch.stack([level, kept[row, 0]]))
        return torch.stack(found), kept

    def score(self, frames: Tensor, first: Tensor, shown: Reference | None) -> FrameScores:
        value = frames[:, 0]
        return FrameScores(value, 0.1 * frames[:, 1], 20 * (value - 0.8), 4 - value)

    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Reference | None) -> PairScores:
        difference = torch.tanh((b - a) @ torch.tensor([0.8, 0.4]))
        if shown is not None:
            difference = difference * shown.progress.mean()
        return PairScores(
            difference, torch.stack([-difference, 0.1 * difference**2, difference], 1)
        )


def frames_of(
    levels: Sequence[Sequence[float]], times_s: Sequence[Sequence[float]] | None = None, px: int = 2
) -> Frames:
    """Return frames of one brightness each, an episode per row; 0.2 s apart unless told."""
    times_s = times_s or [[0.2 * i for i in range(len(row))] for row in levels]
    flat = np.concatenate([np.array(row, np.float64) for row in levels])
    images = np.rint(255 * flat).astype(np.uint8)[:, None, None, None, None]
    lengths = [len(row) for row in levels]
    return Frames(
        images=np.broadcast_to(images, (len(flat), 1, px, px, 3)).copy(),
        image_ok=np.ones((len(flat), 1), bool),
        time_s=np.concatenate([np.array(row, np.float64) for row in times_s]),
        episode_index=np.repeat(np.arange(len(levels)), lengths),
    )


def take(frames: Frames, chosen: Any) -> Frames:
    """Return some frames, their rows counted anew as 0, 1, ... in order."""
    parts = {
        name: None if value is None else np.asarray(value)[chosen]
        for name, value in vars(frames).items()
    }
    parts["episode_index"] = np.unique(parts["episode_index"], return_inverse=True)[1]
    return Frames(**parts)


def value(metric, episodes: Episodes) -> float:
    """Return a metric of a set of episodes."""
    return metric(episodes)(whole(episodes))


def judged(
    value: Sequence[Sequence[float]],
    *,
    progress: Sequence[Sequence[float]] | None = None,
    success: Sequence[Sequence[bool]] | None = None,
    done: Sequence[Sequence[float]] | None = None,
    trend: Sequence[Sequence[int]] | None = None,
    task: Sequence[str] | None = None,
    behaviour: Sequence[str] | None = None,
    period_s: float = 1.0,
    **flat: Any,
) -> Episodes:
    """Return a set from nested lists, an episode each; what is not given is taken from the value.

    `trend` gives 0, 1 or 2 for every frame; `flat` holds whole arrays of the other fields.
    """
    lengths = [len(row) for row in value]
    count = len(lengths)

    def joined(rows: Any, kind: Any) -> np.ndarray:
        return np.concatenate([np.array(row, kind) for row in rows])

    truth = joined(value if progress is None else progress, np.float32)
    empty = unpredicted(
        episode=np.repeat(np.arange(count), lengths),
        time_s=np.concatenate([period_s * np.arange(n) for n in lengths]),
        progress=np.nan_to_num(truth),
        success=truth >= 1.0 if success is None else joined(success, bool),
        task=tuple(task or ["push"] * count),
        behaviour=tuple(behaviour or ["expert"] * count),
    )
    said: dict[str, Any] = {"value": joined(value, np.float32), **flat}
    if done is not None:
        said["done_prob"] = joined(done, np.float32)
    if trend is not None:
        said["trend"] = np.eye(3, dtype=np.float32)[joined(trend, np.int64)]
    return replace(empty, **said)
