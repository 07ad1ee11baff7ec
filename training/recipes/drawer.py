"""Pull a drawer open: a motor skill, learned from single decisions."""

from sim.tasks import drawer
from training.config import TrainConfig
from training.recipes import _motor


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _motor.recipe(drawer.Config(), episodes=400, steps=3000)
