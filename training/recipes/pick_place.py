"""Pick up a cube and put it on a tray: a motor skill, learned from single decisions."""

from sim.tasks import pick_place
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.motor_skill(pick_place.Config(), episodes=1000, steps=2000)
