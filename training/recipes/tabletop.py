"""Do what an instruction says with one of several things: many goals, one policy."""

from sim.tasks import tabletop
from training.algos import bc
from training.core.config import Demonstrations, EvalConfig, TrainConfig
from training.core.optimizer import OptimizerConfig
from vla.backbones import tiny
from vla.heads import diffusion
from vla.memory import none
from vla.policies import vla


def recipe() -> TrainConfig:
    """Return the recipe."""
    return TrainConfig(
        task=tabletop.Config(),
        demos=Demonstrations(episodes=3000),
        policy=vla.Config(
            backbone=tiny.Config(queries=8, blocks=1, text_encoder="transformer", text_width=64),
            memory=none.Config(),
            head=diffusion.Config(width=384),
            n_action_steps=4,
        ),
        algo=bc.Config(sampling="frame", batch_size=64, random_shift_px=3, brightness_jitter=0.2),
        optimizer=OptimizerConfig(ema_decay=0.999),
        eval=EvalConfig(every=2000, episodes=100, final_episodes=200),
        steps=8000,
    )
