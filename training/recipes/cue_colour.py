"""Remember a colour: the main job, K = 4, delays of 16 to 128 control steps (docs/design.md)."""

from sim.tasks import cue_colour
from training.algos import bc
from training.config import Demonstrations, EvalConfig, TrainConfig


def recipe() -> TrainConfig:
    """Return the recipe."""
    return TrainConfig(
        task=cue_colour.Config(),
        demos=Demonstrations(episodes=2000),
        algo=bc.Config(batch=32, queries=3, short_decisions=9),
        eval=EvalConfig(every=0, final_episodes=200),
        steps=1500,
    )
