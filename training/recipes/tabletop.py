"""Do what an instruction says with one of several things: many goals, one policy."""

from sim.tasks import tabletop
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.many_instructions(tabletop.Config(), episodes=3500, steps=8000)
