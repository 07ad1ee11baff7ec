"""Remember a colour, the main job: whole episodes through the memory, delays of 16 to 128 control steps."""

from sim.tasks import cue_colour
from training.config import TrainConfig
from training.recipes import _memory


def recipe() -> TrainConfig:
    """Return the recipe."""
    return _memory.recipe(cue_colour.Config())
