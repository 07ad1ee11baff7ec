"""Scales a recipe to a pretrained backbone and a GPU.

Task, demonstrations and number of evaluations are those of the recipe.
"""

import math
from dataclasses import replace
from typing import Any

from training.core.config import TrainConfig
from vla.backbones import vlm
from vla.contracts.config import type_name


def scaled(
    recipe: TrainConfig, *, backbone: vlm.Config, width: int, depth: int, slots: int, frames: int,
    episodes: int, lr: float,
) -> TrainConfig:  # fmt: skip
    """Return a recipe at another scale that trains on the same number of decisions.

    Batches are smaller and updates more numerous by one factor; it trains on a GPU in bfloat16.

    Args:
        recipe: The recipe.
        backbone: Pretrained backbone.
        width: Width of the denoising transformer.
        depth: Number of its blocks.
        slots: Slots of the memory, if the recipe has a slot memory.
        frames: Decisions per update, for frame sampling.
        episodes: Episodes per update, for sequence sampling.
        lr: Peak learning rate.

    Raises:
        ValueError: the recipe's algorithm is not bc.
    """
    algo: Any = recipe.algo
    if type_name(algo) != "bc":
        raise ValueError(f"preset: scales recipes of algo bc, got {type_name(algo)}")
    policy: Any = recipe.policy
    memory: Any = policy.memory
    if hasattr(memory, "slots"):
        memory = replace(memory, slots=max(slots, memory.slots))
    head = replace(policy.head, denoiser="transformer", width=width, depth=depth)
    batch = frames if algo.sampling == "frame" else episodes
    factor = algo.batch_size / batch
    return replace(
        recipe,
        policy=replace(policy, backbone=backbone, memory=memory, head=head),
        algo=replace(algo, batch_size=batch),
        optimizer=replace(recipe.optimizer, lr=lr, warmup_steps=500, ema_decay=0.999),
        eval=replace(recipe.eval, every=math.ceil(recipe.eval.every * factor)),
        steps=math.ceil(recipe.steps * factor),
        device="cuda",
    )
