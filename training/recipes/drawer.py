"""Pull a drawer open: a motor skill, learned from single decisions."""

from sim.tasks import drawer
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.motor_skill(drawer.Config(), episodes=400, steps=3000)
