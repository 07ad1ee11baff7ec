"""Remember a place: whole episodes through the memory, delays of 16 to 128 control steps."""

from sim.tasks import put_back
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.memory_task(put_back.Config(), short_decisions=13)
