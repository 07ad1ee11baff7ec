"""Off-policy actor-critic whose value function sees more than the policy.

The state that it reads is the simulator's (asymmetric actor-critic, Pinto et al. 2017), or by
default an estimate of it from the policy's own features, fitted again to all rollouts in every
iteration. The policy's last layers are the actor.
"""

from dataclasses import dataclass

from training.core.optimizer import OptimizerConfig
from training.rl.config import OnlineRLConfig, Start
from training.rl.runners.actor_critic import ActorCritic, ActorCriticConfig


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of the asymmetric actor-critic."""

    def learner(self, train: OnlineRLConfig, start: Start) -> ActorCritic:
        """Return the learner of a run."""
        return ActorCritic(self, train, start)


def run_config() -> OnlineRLConfig:
    """Return the run that these settings are made for."""
    return OnlineRLConfig(
        algo=Config(), n_iterations=20, episodes_per_iteration=100, steps=2000, num_envs=100,
        max_prior_episodes=800,
        optimizer=OptimizerConfig(lr=5e-5, warmup_steps=20, min_lr_ratio=0.3, ema_decay=0.99),
    )  # fmt: skip
