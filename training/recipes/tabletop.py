"""Do what an instruction says with one of several things: many goals, one policy."""

from dataclasses import replace

from sim.tasks import tabletop
from training.core.config import EvalConfig, TrainConfig
from training.recipes import _base
from vla.backbones import tiny
from vla.heads import diffusion
from vla.memory import none
from vla.policies import vla


def recipe() -> TrainConfig:
    """Return the recipe."""
    base = _base.motor_skill(tabletop.Config(), episodes=3000, steps=8000)
    return replace(
        base,
        policy=vla.Config(
            backbone=tiny.Config(queries=8, blocks=1, text_encoder="transformer", text_width=64),
            memory=none.Config(),
            head=diffusion.Config(width=384),
            n_action_steps=4,
        ),
        eval=EvalConfig(every=2000, episodes=100, final_episodes=200),
    )
