"""What presets share: a recipe with a pretrained backbone instead of its own, and what follows.

It leaves the task, the demonstrations and how often weights are judged to the recipe.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from training.config import TrainConfig
from vla.backbones import vlm
from vla.contracts.config import type_name
from vla.memory import bank


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a policy around a pretrained backbone, and of the batches that fit a GPU with it."""

    backbone: vlm.Config
    """The pretrained part."""
    width: int
    """Width of the transformer that denoises."""
    depth: int
    """Its blocks."""
    slots: int
    """Slots of the memory, where the recipe has one."""
    windows: int
    """Decisions per update, of recipes that learn from single ones."""
    episodes: int
    """Episodes per update, of recipes that learn from whole ones."""
    lr: float
    """Peak learning rate."""


def grown(recipe: TrainConfig, scale: Scale) -> TrainConfig:
    """Return a recipe at another scale, which learns from as many decisions as before.

    Batches are smaller than the recipe's and updates as many times more; it trains on a GPU, in
    bfloat16.

    Raises:
        ValueError: the recipe does not clone.
    """
    algo: Any = recipe.algo
    if type_name(algo) != "bc":
        raise ValueError(f"preset: scales recipes of algo bc, got {type_name(algo)}")
    policy: Any = recipe.policy
    memory: Any = policy.memory
    if isinstance(memory, bank.Config):
        memory = replace(memory, slots=max(scale.slots, memory.slots))
    head = replace(policy.head, denoiser="transformer", width=scale.width, depth=scale.depth)
    batch = scale.windows if algo.unit == "windows" else scale.episodes
    more = algo.batch / batch
    return replace(
        recipe,
        policy=replace(policy, backbone=scale.backbone, memory=memory, head=head),
        algo=replace(algo, batch=batch),
        optimiser=replace(recipe.optimiser, lr=scale.lr, warmup=500, ema=0.999),
        eval=replace(recipe.eval, every=math.ceil(recipe.eval.every * more)),
        steps=math.ceil(recipe.steps * more),
        device="cuda",
    )
