"""Imitate the expert of whatever task `--task` names: single decisions, no memory."""

from sim.tasks import reach
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe; `vla train --task NAME` puts the task in, and the cameras of its arm."""
    return _base.motor_skill(reach.Config(), episodes=100, steps=2000)
