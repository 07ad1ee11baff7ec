"""From scratch, on two CPU cores: what the recipes have by themselves."""

from training.core.config import TrainConfig


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return the recipe as it is."""
    return recipe
