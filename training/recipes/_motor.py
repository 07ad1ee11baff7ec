"""What the recipes of motor skills share."""

from training.algos import bc
from training.config import Demonstrations, EvalConfig, TrainConfig
from training.optimiser import OptimiserConfig
from vla.contracts.config import PluginConfig
from vla.memory import none
from vla.policies import vla


def recipe(task: PluginConfig, *, episodes: int, steps: int) -> TrainConfig:
    """Return the recipe of a task that shows all it asks for: single decisions, no memory."""
    return TrainConfig(
        task=task,
        demos=Demonstrations(episodes=episodes),
        policy=vla.Config(memory=none.Config(), execute=4),
        algo=bc.Config(unit="windows", batch=64),
        optimiser=OptimiserConfig(ema=0.999),
        eval=EvalConfig(every=2000, episodes=50),
        steps=steps,
    )
