"""Reach a target: the smallest motor skill, a few minutes on two cores."""

from sim.tasks import reach
from training.algos import bc
from training.config import Demonstrations, EvalConfig, TrainConfig
from vla.memory import none
from vla.policies import vla


def recipe() -> TrainConfig:
    """Return the recipe."""
    return TrainConfig(
        task=reach.Config(),
        demos=Demonstrations(episodes=400),
        policy=vla.Config(memory=none.Config()),
        algo=bc.Config(batch=32, queries=4, phases=4),
        eval=EvalConfig(every=0, final_episodes=200),
        steps=1500,
    )
