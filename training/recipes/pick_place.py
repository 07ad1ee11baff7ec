"""Pick up a cube and put it on a tray: a motor skill, learned from single decisions."""

from sim.tasks import pick_place
from training.config import TrainConfig
from training.recipes import _motor


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _motor.recipe(pick_place.Config(), episodes=1500, steps=10000)
