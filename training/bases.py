"""What recipes share: one base for memory tasks, one for motor skills."""

from training.algos import bc
from training.config import Demonstrations, EvalConfig, TrainConfig
from training.optimiser import OptimiserConfig
from vla.contracts.config import PluginConfig
from vla.memory import none
from vla.policies import vla


def memory_task(task: PluginConfig, *, short_decisions: int = 9) -> TrainConfig:
    """Return the recipe of a task with a cue, a delay and a choice: whole episodes.

    Args:
        task: The task.
        short_decisions: Length in decisions of its shortest quarter of episodes.
    """
    return TrainConfig(
        task=task,
        demos=Demonstrations(episodes=1500),
        algo=bc.Config(batch=32, queries=3, short_decisions=short_decisions),
        eval=EvalConfig(every=0, final_episodes=200),
        steps=1000,
    )


def motor_skill(task: PluginConfig, *, episodes: int, steps: int) -> TrainConfig:
    """Return the recipe of a task that shows all it asks for: single decisions, no memory."""
    return TrainConfig(
        task=task,
        demos=Demonstrations(episodes=episodes),
        policy=vla.Config(memory=none.Config(), execute=4),
        algo=bc.Config(unit="windows", batch=64, shift_px=3, gain=0.2),
        optimiser=OptimiserConfig(ema=0.999),
        eval=EvalConfig(every=2000, episodes=50),
        steps=steps,
    )
