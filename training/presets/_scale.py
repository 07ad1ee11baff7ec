"""Scales a recipe to a pretrained backbone and a GPU.

Task, demonstrations and number of evaluations are those of the recipe.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from training.core.config import TrainConfig
from vla.backbones import vlm
from vla.contracts.config import type_name


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a policy with a pretrained backbone, and of batches that fit a GPU."""

    backbone: vlm.Config
    """Pretrained backbone."""
    width: int
    """Width of the denoising transformer."""
    depth: int
    """Number of its blocks."""
    slots: int
    """Slots of the memory, if the recipe has a slot memory."""
    frames: int
    """Decisions per update, for frame sampling."""
    episodes: int
    """Episodes per update, for sequence sampling."""
    lr: float
    """Peak learning rate."""


def scaled(recipe: TrainConfig, scale: Scale) -> TrainConfig:
    """Return a recipe at another scale that trains on the same number of decisions.

    Batches are smaller and updates more numerous by one factor; it trains on a GPU in bfloat16.

    Raises:
        ValueError: the recipe's algorithm is not bc.
    """
    algo: Any = recipe.algo
    if type_name(algo) != "bc":
        raise ValueError(f"preset: scales recipes of algo bc, got {type_name(algo)}")
    policy: Any = recipe.policy
    memory: Any = policy.memory
    if hasattr(memory, "slots"):
        memory = replace(memory, slots=max(scale.slots, memory.slots))
    head = replace(policy.head, denoiser="transformer", width=scale.width, depth=scale.depth)
    batch = scale.frames if algo.sampling == "frame" else scale.episodes
    factor = algo.batch_size / batch
    return replace(
        recipe,
        policy=replace(policy, backbone=scale.backbone, memory=memory, head=head),
        algo=replace(algo, batch_size=batch),
        optimizer=replace(recipe.optimizer, lr=scale.lr, warmup_steps=500, ema_decay=0.999),
        eval=replace(recipe.eval, every=math.ceil(recipe.eval.every * factor)),
        steps=math.ceil(recipe.steps * factor),
        device="cuda",
    )
