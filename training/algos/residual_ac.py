"""Off-policy actor-critic of a residual on a frozen policy, distilled back into the policy.

A small network adds to what the frozen policy would do (residual policy learning, Johannink et al.
2019; on imitated policies ResiP, Ankile et al. 2024, and PLD, 2025). A copy of the policy learns to
do what both do together: it alone is evaluated and written, an ordinary checkpoint.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.core.optimizer import OptimizerConfig
from training.rl.config import OnlineRLConfig, Start
from training.rl.rollout.explorer import one_step, one_step_policy
from training.rl.runners.actor_critic import ActorCritic, ActorCriticConfig
from training.rl.runners.frozen_vision import freeze_vision
from vla.contracts.config import validate_min
from vla.nn.context import Context
from vla.policies.vla import VLAPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of the residual actor-critic."""

    residual_scale: float = 0.5
    """Largest residual of an action, in normalised units."""
    residual_hidden_dim: int = 256
    """Width of the residual's two hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_min(self, residual_scale=0, residual_hidden_dim=1)

    def actor(self, policy: VLAPolicy, seed: int) -> tuple[VLAPolicy, int]:
        """Return a frozen copy of the policy with a residual, and the number of its features."""
        actor, features = super().actor(copy.deepcopy(policy), seed)
        actor.requires_grad_(requires_grad=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # noqa: TID251  torch's initialisers know no other source
            actor.head.denoiser = ResidualDenoiser(
                actor.head.denoiser, self.residual_hidden_dim, self.residual_scale
            ).to(policy.device)
        return actor, features

    def learner(self, train: OnlineRLConfig, start: Start) -> "ResidualActorCritic":
        """Return the learner of a run."""
        return ResidualActorCritic(self, train, start)


def run_config() -> OnlineRLConfig:
    """Return the run that these settings are made for."""
    return OnlineRLConfig(
        algo=Config(), n_iterations=20, episodes_per_iteration=100, steps=2000, num_envs=100,
        max_prior_episodes=800,
        optimizer=OptimizerConfig(lr=2e-4, warmup_steps=20, min_lr_ratio=0.3, ema_decay=0.99),
    )  # fmt: skip


class ResidualDenoiser(nn.Module):
    """A frozen denoiser, and a network of its condition and its prediction that adds to this; it
    adds nothing at first.
    """

    def __init__(self, base: nn.Module, width: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        size = base.chunk * base.actions
        inputs = base.condition.in_features + size
        self.residual = nn.Sequential(
            nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, size),
        )  # fmt: skip
        nn.init.zeros_(self.residual[-1].weight)
        nn.init.zeros_(self.residual[-1].bias)

    def forward(
        self, latent: Tensor, t: Tensor, context: Context, prefix_mask: Tensor | None = None
    ) -> Tensor:
        """Return the prediction f32 [b, k, u]; arguments as of `vla.nn.denoisers.MlpDenoiser`."""
        predicted = self.base(latent, t, context, prefix_mask)
        seen = torch.cat([context.pooled, predicted.flatten(1)], 1)
        return predicted + self.scale * torch.tanh(self.residual(seen)).view_as(predicted)


class ResidualActorCritic(ActorCritic):
    """Satisfies `training.core.loop.Learner`."""

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        self.policy = one_step_policy(self.runner.policy)
        freeze_vision(self.policy)
        self.module["actor"] = self.module["policy"]
        self.module["policy"] = self.policy

    def distillation_loss(self, features: Tensor, noise: Tensor, chunk: Tensor) -> Tensor:
        """Return how far the policy is from the actor's chunks f32 [b, h, u]."""
        done = one_step(self.policy, features, noise)[:, : self.length]
        return nn.functional.mse_loss(done, chunk)
