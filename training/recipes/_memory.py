"""What the recipes of memory tasks share."""

from training.algos import bc
from training.config import Demonstrations, EvalConfig, TrainConfig
from vla.contracts.config import PluginConfig


def recipe(task: PluginConfig) -> TrainConfig:
    """Return the recipe of a task with a cue, a delay and a choice."""
    return TrainConfig(
        task=task,
        demos=Demonstrations(episodes=1500),
        algo=bc.Config(batch=32, queries=3, short_decisions=9),
        eval=EvalConfig(every=0, final_episodes=200),
        steps=1000,
    )
