"""Touch a target: a motor skill, learned from single decisions."""

from sim.tasks import reach
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.motor_skill(reach.Config(), episodes=400, steps=2000)
