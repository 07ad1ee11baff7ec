"""Runs of online RL that take seconds."""

from dataclasses import replace
from pathlib import Path

from tests.training.rl.conftest import TASK
from training.algos import asymmetric_ac, aux_bc, dppo, filtered_bc, ogpo, residual_ac
from training.core.config import EvalConfig
from training.rl.config import OnlineRLConfig, Start
from training.rl.rollout.explorer import ExplorationConfig
from training.rl.value.chunk_value import ValueConfig

ALGOS = {
    "filtered_bc": filtered_bc.Config(batch_size=4, states_per_episode=2),
    "ogpo": ogpo.Config(
        batch_episodes=1, states_per_episode=2, group_size=3, num_critics=2, critic_hidden_dim=16,
        critic_batch_size=8, critic_warmup_steps=3, bc_batch_size=2,
    ),
    "ogpo, frozen vision": ogpo.Config(
        batch_episodes=1, states_per_episode=2, group_size=3, num_critics=2, critic_hidden_dim=16,
        critic_batch_size=8, critic_warmup_steps=3, bc_batch_size=2, freeze_vision=True,
    ),
    "asymmetric_ac": asymmetric_ac.Config(
        initial_episodes=0,
        value=ValueConfig(
            estimator_steps=5, num_critics=2, hidden_dim=16, batch_size=8, warmup_steps=3
        ),
        batch_size=8, utd_ratio=2, exploration=ExplorationConfig(best_of_n_fraction=1.0),
    ),
    "residual_ac": residual_ac.Config(
        residual_hidden_dim=8,
        initial_episodes=0,
        value=ValueConfig(
            estimator_steps=5, num_critics=2, hidden_dim=16, batch_size=8, warmup_steps=3
        ),
        batch_size=8, utd_ratio=2, exploration=ExplorationConfig(best_of_n_fraction=1.0),
    ),
    "aux_bc": aux_bc.Config(synthetic_frames=5, aux_batch_size=4, batch_size=4),
    "dppo": dppo.Config(batch_episodes=1, bc_batch_size=2, n_critic_warmup_itr=0),
    "dppo, frozen vision": dppo.Config(
        batch_episodes=1, bc_batch_size=2, n_critic_warmup_itr=0, freeze_vision=True
    ),
}  # fmt: skip

EXPLORING = ("asymmetric_ac", "residual_ac", "aux_bc")
"""Those whose rollouts are no denoising chains."""


def start(place: Path, out: Path) -> Start:
    """Return what a run in `out` starts from."""
    return Start(
        policy=place / "start",
        dataset=place / "demos",
        reward_model=None,
        experience=out / "experience",
    )


def config(algo: str = "filtered_bc", **changes) -> OnlineRLConfig:
    """Return a run of two iterations of two episodes, each followed by two updates."""
    run = OnlineRLConfig(
        task=TASK, algo=ALGOS[algo], reward="dense_oracle", n_iterations=2,
        episodes_per_iteration=2, num_envs=2, steps=4, save_every=1, log_every=1, threads=1,
        random_shift_px=0, brightness_jitter=0.0,
        eval=EvalConfig(every=0, final_episodes=2),
    )  # fmt: skip
    return replace(run, **changes)
