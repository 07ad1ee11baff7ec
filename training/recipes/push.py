"""Push a block into a zone: a motor skill, learned from single decisions."""

from sim.tasks import push
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.motor_skill(push.Config(), episodes=600, steps=4000)
