"""Pick up a cube and put it on a tray: a motor skill, learned from single decisions."""

from sim.tasks import pick_place
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.motor_skill(pick_place.Config(), episodes=1000, steps=2000)
