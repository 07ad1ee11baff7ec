"""DPPO: policy gradient on two levels, action chunks outside and denoising steps inside.

Ren et al. 2024 (arXiv 2409.00588). The reward of a decision reaches every transition of its
denoising chain, discounted towards the noise; each transition is a Gaussian, so PPO's ratio is
exact. Unlike the published code: the value network sees the clock, so that running out of time is
an outcome like any other; the memory is replayed with the present weights; one fine-tuned step is
enough. As there, the first denoising steps can be left to the original network.

With `--algo.freeze-vision` and a policy of one denoising step it is PPO on features.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.diagnostics import training_diagnostics
from training.rl.experience.episode import Episode
from training.rl.experience.gae import advantages
from training.rl.experience.replay import clock
from training.rl.rollout.collector import env_spec
from training.rl.runners.frozen_vision import (
    Decisions,
    context_of,
    freeze_vision,
    standardize,
    standardize_inputs,
)
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from vla.contracts import migrate
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.nn import diffusion
from vla.nn.context import Context
from vla.nn.denoising_head import DenoisingHead
from vla.policies.vla import VLAPolicy

LOG_PROB_BOUNDS = (-5.0, 2.0)
"""Of a transition's log-probability, the mean over the numbers of the chunk; the published code
clamps that of each number."""


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of DPPO."""

    batch_episodes: int = 10
    """Episodes per update."""
    ft_denoising_steps: int = 0
    """The last denoising steps that are fine-tuned by a copy of the network; the original network,
    which stays as it was with backbone and memory, does the others. 0: all, by one network."""
    freeze_vision: bool = False
    """Only the layers behind `VLAPolicy.features` learn, from features that are computed once per
    decision. The demonstrations of the BC loss are still encoded in every update."""
    bootstrap_time_limits: bool = False
    """Continue an episode that the time limit cut by the value of its last observation: right where
    the limit is no part of the task. The value network sees no clock then. Otherwise the episode
    ends there, without success."""
    min_sampling_denoising_std: float = 0.05
    """Least standard deviation of a transition, in sampling and in log-probabilities, in normalised
    action units."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    gamma_denoising: float = 0.99
    """Discount of advantages per denoising step, counted back from the action."""
    clip_ploss_coef: float = 0.01
    """Bound of the ratio's change at the last, least noisy transition."""
    clip_ploss_coef_base: float = 0.001
    """The same at the first transition; between the two it grows exponentially."""
    clip_ploss_coef_rate: float = 3.0
    """Exponent of that growth."""
    target_kl: float = 1.0
    """Divergence from the policy that acted beyond which a batch trains only the value network."""
    n_critic_warmup_itr: int = 1
    """Iterations in which only the value network learns."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    bc_loss_coeff: float = 0.1
    """Weight of the BC loss on demonstrations."""
    bc_batch_size: int = 8
    """Demonstrations per update."""

    def __post_init__(self) -> None:
        validate_min(
            self, batch_episodes=1, ft_denoising_steps=0, n_critic_warmup_itr=0, bc_loss_coeff=0,
            bc_batch_size=1, clip_ploss_coef=0, clip_ploss_coef_base=0,
        )  # fmt: skip

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> VLAPolicy:
        """Return the policy with the layers that the learner's has."""
        return standardize_inputs(policy) if self.freeze_vision else policy

    def learner(self, train: OnlineRLConfig, start: Start) -> "Dppo":
        """Return the learner of a run."""
        return Dppo(self, train, start)


class RolloutBatch(NamedTuple):
    """Targets of rollouts, T decisions in all."""

    advantage: np.ndarray
    """f32 [t]."""
    value: np.ndarray
    """f32 [t], target of the value network."""
    logprob: np.ndarray
    """f32 [t, ft], log-probability per number under the policy that acted."""
    policy_mask: np.ndarray
    """f32 [t], 1 where the policy acted and 0 where it did not."""
    clock: np.ndarray
    """f32 [t], share of the time limit used before the decision."""


class Batch(NamedTuple):
    """Rollouts with their targets, and demonstrations."""

    decisions: Decisions
    latents: Tensor
    rollouts: RolloutBatch
    demos: EpisodeBatch | None
    """None without a BC loss."""


class Dppo(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config
    # Ratios are relative to the policy of the latest iteration.
    bounds = training_diagnostics.with_limits(staleness=1.0)

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        if start.prior_runs:
            raise ValueError(
                "dppo: got prior_runs, but it learns from rollouts of the present policy; leave "
                "--prior-runs out, or use ogpo, which learns from any rollouts"
            )
        super().__init__(config, train, start)
        if train.runtime.max_policy_lag:
            raise ValueError(
                f"dppo: got runtime.max_policy_lag {train.runtime.max_policy_lag}, but it learns "
                "from rollouts of the present policy; use --runtime.max-policy-lag 0, or ogpo, "
                "which learns from any rollouts"
            )
        head = self.policy.head
        # Rollouts need noise at every transition; acting takes their means all the same.
        head.config = replace(
            head.config, min_sampling_denoising_std=config.min_sampling_denoising_std
        )
        steps = head.config.num_inference_steps
        if config.ft_denoising_steps > steps:
            raise ValueError(
                f"ft_denoising_steps: got {config.ft_denoising_steps}, the policy denoises in "
                f"{steps} steps"
            )
        # Updates read the latest rollouts, and the BC loss perhaps the first.
        self.runner.keep_images = "first and latest"
        self.ft_steps = range(steps - (config.ft_denoising_steps or steps), steps)
        self.time_limit, _ = env_spec(train, self.policy.robot, needs_state=False)
        if config.freeze_vision:
            freeze_vision(self.policy)
        if self.ft_steps.start:
            self._split_head()
        width = self.policy.backbone.sizes(0)[0] + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            self.module.value_net = value_network(width).to(train.device)
        self.latest: list[Episode] = []
        self.features: list[Tensor] = []
        """Those of the decisions and of the end of each, where vision is frozen."""
        self.targets: list[RolloutBatch] = []
        self.order: list[int] = []

    def _split_head(self) -> None:
        """Leave everything as it was but a copy of the network for the fine-tuned steps."""
        head, count = self.policy.head, len(self.ft_steps)
        if head.config.ft_denoising_steps != count:
            head.add_ft_denoiser(count)
        settings: Any = self.policy.config.head
        self.policy.config = replace(
            self.policy.config, head=replace(settings, ft_denoising_steps=count)
        )
        self.policy.requires_grad_(requires_grad=False)
        head.late.requires_grad_(requires_grad=True)

    def collect(self) -> Batch:
        """Collect rollouts if due; return some of the latest, each as often as others."""
        if self.collect_rollouts_if_due():
            self._read_latest()
            if self.config.freeze_vision and self.runner.iteration == 1:
                standardize(self.policy, torch.cat(self.features))
            self.targets = self._compute_targets()
            self.order = []
        if not self.order:
            self.order = self.rng.permutation(len(self.latest)).tolist()
        count = self.config.batch_episodes
        chosen, self.order = self.order[:count], self.order[count:]
        episodes = [self.latest[i] for i in chosen]
        self.count_samples(episodes)
        targets = [self.targets[i] for i in chosen]
        demos = None
        if self.config.bc_loss_coeff:
            demos = self.augment(self.sample_demos(self.config.bc_batch_size, 4))
        return Batch(
            decisions=self._decisions(chosen), latents=self._latents(episodes),
            rollouts=RolloutBatch(*(np.concatenate(part) for part in zip(*targets, strict=True))),
            demos=demos,
        )  # fmt: skip

    def update(
        self, data: Batch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the clipped objective, the value loss and the BC loss once."""
        self.module.eval()  # the statistics that normalised the rollouts, or no ratio would be 1
        config, rollouts = self.config, data.rollouts
        context = context_of(self.policy, data.decisions)
        log_ratio = self.log_probs(context, data.latents) - self.to_device(rollouts.logprob)
        mask = self.to_device(rollouts.policy_mask)
        advantage = self.to_device(standardized(rollouts.advantage)) * mask
        surrogate = clipped(log_ratio, advantage, self._clip_coefs(), self._discounts())
        # Schulman's estimator: never below 0.
        kl = ((log_ratio.exp() - 1 - log_ratio) * mask[:, None]).mean()
        warm = self.runner.iteration > config.n_critic_warmup_itr
        learns = float(warm and float(kl.detach()) <= config.target_kl)
        value = self._value(context, rollouts.clock)
        value_loss = nn.functional.mse_loss(value, self.to_device(rollouts.value))
        bc_loss = surrogate.new_zeros(())
        if data.demos is not None:
            bc_loss = self.policy.bc_loss(data.demos, generator)[0]
        losses = {
            "policy": surrogate * learns,
            "value": config.vf_coef * value_loss,
            "bc_loss": config.bc_loss_coeff * bc_loss * learns,
        }
        metrics = optimizer.step(torch.stack(list(losses.values())).sum())
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {
            "kl": float(kl.detach()),
            "ratio": float((log_ratio.exp() - 1).abs().max().detach()),
        }
        return {**values, **self.log_metrics(metrics), "samples": float(len(rollouts.value))}

    def log_probs(self, context: Context, latents: Tensor) -> Tensor:
        """Return log-probabilities f32 [m, ft] of transitions, per executed number."""
        head: DenoisingHead = self.policy.head
        executed = self.policy.config.n_action_steps
        log_probs = []
        for i in self.ft_steps:
            mean, std = head.step(i, latents[:, i], context, True)
            mean, latent = mean[:, :executed], latents[:, i + 1, :executed]
            total = diffusion.gaussian_log_prob(latent, mean, std)
            log_probs.append((total / latent[0].numel()).clamp(*LOG_PROB_BOUNDS))
        return torch.stack(log_probs, 1)

    @torch.no_grad()
    def _compute_targets(self) -> list[RolloutBatch]:
        """Return the targets of the latest episodes, by the present policy and values."""
        targets = []
        rewards = self.runner.rewards[-len(self.latest) :]
        for i, (episode, reward) in enumerate(zip(self.latest, rewards, strict=True)):
            logprob = self.log_probs(
                context_of(self.policy, self._decisions([i])), self._latents([episode])
            )
            known = self.features[i] if self.features else self.boundaries(episode)
            time = clock(episode, self.time_limit)
            if self.config.bootstrap_time_limits:
                time = np.zeros_like(time)
            value = self._value(context_of(self.policy, known), time).cpu().numpy()
            terminated = episode.terminated or not self.config.bootstrap_time_limits
            advantage = advantages(
                reward.reward, value, terminated=terminated, gamma=self.run.gamma,
                gae_lambda=self.config.gae_lambda,
            )  # fmt: skip
            mask = episode.is_policy_action.astype(np.float32)
            targets.append(
                RolloutBatch(
                    advantage, advantage + value[:-1], logprob.cpu().numpy(), mask, time[:-1]
                )
            )
        return targets

    def _value(self, context: Context, time: np.ndarray) -> Tensor:
        """Return values f32 [m] of contexts at shares of the time limit f32 [m]."""
        share = self.to_device(time)
        value: Tensor = self.module.value_net(
            torch.cat([context.pooled.detach(), share[:, None]], 1)
        )
        return value[:, 0]

    def _decisions(self, chosen: list[int]) -> Decisions:
        """Return the decisions of some of the latest episodes."""
        if self.features:
            return torch.cat([self.features[i][:-1] for i in chosen])
        episodes = [self.latest[i] for i in chosen]
        return self.gather(episodes, [np.arange(len(e)) for e in episodes])

    def _latents(self, episodes: list[Episode]) -> Tensor:
        return self.to_device(np.concatenate([e.latents for e in episodes]))

    def _read_latest(self) -> None:
        self.runner.drop_images()
        self.latest = self.runner.latest[0]
        if self.config.freeze_vision:
            self.policy.eval()
            self.features = [
                self.policy.batch_features(self.boundaries(episode)) for episode in self.latest
            ]

    def _clip_coefs(self) -> Tensor:
        """Return the bound of each fine-tuned transition's ratio [ft]."""
        config, count = self.config, len(self.ft_steps)
        rate, low, high = (
            config.clip_ploss_coef_rate, config.clip_ploss_coef_base, config.clip_ploss_coef
        )  # fmt: skip
        share = torch.linspace(0, 1, count) if count > 1 else torch.ones(1)
        coefs = low + (high - low) * (torch.exp(rate * share) - 1) / (math.exp(rate) - 1)
        return coefs.to(self.policy.device)

    def _discounts(self) -> Tensor:
        """Return the discount of each fine-tuned transition's advantage [ft]."""
        left = torch.arange(len(self.ft_steps) - 1, -1, -1.0, device=self.policy.device)
        return self.config.gamma_denoising**left

    def state(self) -> dict[str, Any]:
        """Return the state of rollouts and of their targets, as JSON types."""
        targets = [[part.tolist() for part in each] for each in self.targets]
        return {**super().state(), "order": self.order, "targets": targets}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        state = migrate.online_rl_state(state)
        super().restore(state)
        self._read_latest()
        self.order = state["order"]
        self.targets = [
            RolloutBatch(*(np.array(part, np.float32) for part in each))
            for each in state["targets"]
        ]


def clipped(log_ratio: Tensor, advantage: Tensor, clip_coef: Tensor, discount: Tensor) -> Tensor:
    """Return PPO's clipped loss (Schulman et al. 2017, eq. 7), the mean over all transitions.

    Log-ratios are f32 [m, ft], advantages f32 [m]; each transition has a coefficient, how far its
    ratio may usefully go from 1, and a discount of the advantage, f32 [ft].
    """
    ratio, weighted = log_ratio.exp(), advantage[:, None] * discount
    bounded = torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
    return -torch.minimum(ratio * weighted, bounded * weighted).mean()


def standardized(values: np.ndarray) -> np.ndarray:
    """Return values with mean 0 and deviation 1; zeros where all are alike."""
    return (values - values.mean()) / max(float(values.std()), 1e-6)


def value_network(width: int) -> nn.Module:
    """Return a network from features [m, width] to values [m, 1], 0 at first."""
    last = nn.Linear(256, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, 256), nn.Mish(), nn.Linear(256, 256), nn.Mish(), last)
