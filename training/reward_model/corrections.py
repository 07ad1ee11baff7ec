"""Corrections of labelled data sets by people, as training examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from reward_models.core import overrides
from reward_models.losses.pairwise import CorrectionBatch
from training.reward_model.batches import SamplerConfig, augment_episodes
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset

PAST = 6
"""Frames of an episode that only update the memory, spread evenly up to the corrected one."""
NO_LABEL = -1
"""Where a correction has no trend, or no success."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corrections:
    """C corrections: frames before, at the beginning of the horizon, and now."""

    images: np.ndarray
    """u8 [c, PAST + 2, v, h, w, 3]; the first is the episode's first frame."""
    instruction: np.ndarray
    """str [c]."""
    trend: np.ndarray
    """i64 [c]: 0 regress, 1 stagnation, 2 progress, or NO_LABEL."""
    success: np.ndarray
    """i64 [c]: whether the last frame is a success, or NO_LABEL."""


def load_corrections(
    folders: Sequence[str], cameras: Sequence[str], horizon_s: float, px: int
) -> Corrections | None:
    """Read the corrections of labelled data sets; None without folders.

    A later correction of the same frame or episode replaces an earlier one.

    Raises:
        ValueError: a folder is no data set, lacks a camera, or has no corrections.
    """
    parts = [_load(Path(folder), cameras, horizon_s, px) for folder in folders]
    if not parts:
        return None
    names = ("images", "instruction", "trend", "success")
    return Corrections(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


def sample_corrections(
    corrections: Corrections, count: int, config: SamplerConfig, rng: np.random.Generator
) -> CorrectionBatch:
    """Return `count` corrections at random, augmented as all batches are."""
    chosen = rng.integers(len(corrections.trend), size=count)
    images, _ = augment_episodes(corrections.images[chosen], config, rng)
    size = images.shape[1]
    frames = Frames(
        images=torch.from_numpy(images.reshape(-1, *images.shape[2:])),
        image_ok=torch.ones(count * size, images.shape[2], dtype=torch.bool),
        time_s=torch.arange(size, dtype=torch.float64).repeat(count),
        episode_index=torch.arange(count).repeat_interleave(size),
    )
    return CorrectionBatch(
        frames=frames,
        task=tuple(corrections.instruction[chosen]),
        trend=torch.from_numpy(corrections.trend[chosen]),
        success=torch.from_numpy(corrections.success[chosen]),
    )


def _load(folder: Path, cameras: Sequence[str], horizon_s: float, px: int) -> Corrections:
    info = open_dataset(folder)
    corrections = overrides.latest(overrides.read(folder))
    if not corrections:
        raise ValueError(f"{folder}: holds no corrections; make some with `vla label --review`")
    back = round(horizon_s * info.fps)
    steps = []
    for c in corrections:
        last = int(info.lengths[c.episode]) - 1
        now = last if c.frame is None else c.frame
        past = np.linspace(0, max(now - back, 0), PAST).round().astype(np.int64)
        steps.append(np.concatenate([past, [max(now - back, 0), now]]))
    choice = FrameChoice(
        episode=np.repeat([c.episode for c in corrections], PAST + 2), step=np.concatenate(steps)
    )
    chosen = tuple(info.camera(name) for name in cameras)
    images = decode_views(info, chosen, choice, (px, px))
    trend = [c.value + 1 if c.kind == "trend" else NO_LABEL for c in corrections]
    success = [int(c.value) if c.kind == "success" else NO_LABEL for c in corrections]
    return Corrections(
        images=images.reshape(len(corrections), PAST + 2, *images.shape[1:]),
        instruction=np.array([info.tasks[c.episode] for c in corrections]),
        trend=np.array(trend, np.int64), success=np.array(success, np.int64),
    )  # fmt: skip
