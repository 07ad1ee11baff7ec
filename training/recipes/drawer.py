"""Pull a drawer open: a motor skill, learned from single decisions."""

from sim.tasks import drawer
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.motor_skill(drawer.Config(), episodes=400, steps=3000)
