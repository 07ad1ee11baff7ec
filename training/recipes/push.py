"""Push a block into a zone: a motor skill, learned from single decisions."""

from sim.tasks import push
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.motor_skill(push.Config(), episodes=600, steps=2000)
