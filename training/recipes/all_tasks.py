"""All our tasks in one policy with a memory, told by words; sized for a GPU."""

from dataclasses import replace

from sim.tasks import tabletop
from training.algos import bc
from training.core.config import EvalConfig, TrainConfig
from training.recipes import _base
from vla.memory import bank
from vla.policies import vla


def recipe() -> TrainConfig:
    """Return the recipe."""
    base = _base.many_instructions(tabletop.Config(), episodes=1500, steps=2000)
    assert isinstance(base.policy, vla.Config)
    assert isinstance(base.algo, bc.Config)
    return replace(
        base,
        co_tasks=("cue_colour", "put_back", "reach", "push", "drawer", "pick_place"),
        co_fraction=0.55,
        policy=replace(base.policy, memory=bank.Config(), n_action_steps=8),
        algo=replace(
            base.algo,
            sampling="sequence",
            batch_size=96,
            num_phase_offsets=4,
            co_num_phase_offsets=(1, 1, 4, 4, 4, 4),
            short_decisions=11,
        ),
        eval=EvalConfig(every=0, final_episodes=200),
    )
