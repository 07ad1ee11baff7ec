"""Remember a colour, the main job: whole episodes through the memory, delays of 16 to 128 steps."""

from sim.tasks import cue_colour
from training import bases
from training.config import TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return bases.memory_task(cue_colour.Config())
