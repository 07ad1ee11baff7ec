"""Push a block into a zone: a motor skill, learned from single decisions."""

from sim.tasks import push
from training.config import TrainConfig
from training.recipes import _motor


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _motor.recipe(push.Config(), episodes=600, steps=4000)
