"""Remember a place: whole episodes through the memory, delays of 16 to 128 control steps."""

from sim.tasks import put_back
from training.config import TrainConfig
from training.recipes import _memory


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _memory.recipe(put_back.Config())
