"""Remember a colour, the main job: whole episodes through the memory, delays of 16 to 128 steps."""

from sim.tasks import cue_colour
from training.core.config import TrainConfig
from training.recipes import _base


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _base.memory_task(cue_colour.Config())
