"""Remember a place: whole episodes through the memory, delays of 16 to 128 control steps."""

from sim.tasks import put_back
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.memory_task(put_back.Config(), short_decisions=13)
