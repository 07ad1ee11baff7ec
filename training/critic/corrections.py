"""What people corrected in labelled data sets, as further examples for the next training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from reward_models import overrides
from reward_models.pairs import CorrectionBatch
from training.critic.batches import Drawing, augmented
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset

PAST = 6
"""Frames of an episode that are only remembered, spread evenly up to the corrected one."""
UNTOLD = -1
"""Where a correction says nothing of the trend, or of success."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corrections:
    """C corrections: frames before, at the beginning of the horizon, and now."""

    images: np.ndarray
    """u8 [c, PAST + 2, v, h, w, 3]; the first is the episode's first frame."""
    instruction: np.ndarray
    """str [c]."""
    trend: np.ndarray
    """i64 [c]: 0 regress, 1 stagnation, 2 progress, or UNTOLD."""
    success: np.ndarray
    """i64 [c]: whether the last frame is a success, or UNTOLD."""


def load_corrections(
    folders: Sequence[str], cameras: Sequence[str], horizon_s: float, px: int
) -> Corrections | None:
    """Read the corrections of labelled data sets; None where there are no folders.

    A later correction of the same thing takes the place of an earlier one.

    Raises:
        ValueError: a folder is no data set, lacks a camera, or nobody corrected it.
    """
    parts = [_load(Path(folder), cameras, horizon_s, px) for folder in folders]
    if not parts:
        return None
    names = ("images", "instruction", "trend", "success")
    return Corrections(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


def draw_corrections(
    known: Corrections, count: int, drawing: Drawing, rng: np.random.Generator
) -> CorrectionBatch:
    """Return `count` corrections at random, augmented like everything else."""
    chosen = rng.integers(len(known.trend), size=count)
    images = augmented(known.images[chosen], drawing, rng)
    size = images.shape[1]
    frames = Frames(
        images=torch.from_numpy(images.reshape(-1, *images.shape[2:])),
        image_ok=torch.ones(count * size, images.shape[2], dtype=torch.bool),
        time_s=torch.arange(size, dtype=torch.float64).repeat(count),
        row=torch.arange(count).repeat_interleave(size),
    )
    return CorrectionBatch(
        frames=frames,
        task=tuple(known.instruction[chosen]),
        trend=torch.from_numpy(known.trend[chosen]),
        success=torch.from_numpy(known.success[chosen]),
    )


def _load(folder: Path, cameras: Sequence[str], horizon_s: float, px: int) -> Corrections:
    info = open_dataset(folder)
    told = overrides.latest(overrides.read(folder))
    if not told:
        raise ValueError(f"{folder}: holds no corrections; make some with `vla label --review`")
    back = round(horizon_s * info.fps)
    steps = []
    for one in told:
        last = int(info.lengths[one.episode]) - 1
        now = last if one.frame is None else one.frame
        past = np.linspace(0, max(now - back, 0), PAST).round().astype(np.int64)
        steps.append(np.concatenate([past, [max(now - back, 0), now]]))
    choice = FrameChoice(
        episode=np.repeat([one.episode for one in told], PAST + 2), step=np.concatenate(steps)
    )
    chosen = tuple(info.camera(name) for name in cameras)
    images = decode_views(info, chosen, choice, (px, px))
    trend = [one.value + 1 if one.kind == "trend" else UNTOLD for one in told]
    success = [int(one.value) if one.kind == "success" else UNTOLD for one in told]
    return Corrections(
        images=images.reshape(len(told), PAST + 2, *images.shape[1:]),
        instruction=np.array([info.tasks[one.episode] for one in told]),
        trend=np.array(trend, np.int64), success=np.array(success, np.int64),
    )  # fmt: skip
