"""Touch a target: a motor skill, learned from single decisions."""

from sim.tasks import reach
from training.config import TrainConfig
from training.recipes import _motor


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _motor.recipe(reach.Config(), episodes=400, steps=2000)
