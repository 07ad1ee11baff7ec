"""Touch a target: a motor skill, learned from single decisions."""

from sim.tasks import reach
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.motor_skill(reach.Config(), episodes=1000, steps=2000, queries=8)
