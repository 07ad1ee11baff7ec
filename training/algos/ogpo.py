"""OGPO for diffusion heads: an off-policy chunk value is the reward at the end of the chain.

After "Off-policy generative policy optimization" (ICML 2026), published for flow heads. At states
of all rollouts, groups of chains are sampled from a slowly following copy of the policy; how much
better than its group a chunk is, by an ensemble of critics, is the advantage of each transition of
its chain. Ratios are clipped as in PPO; the BC loss on demonstrations and successes keeps the
policy near the data.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience import episode_store
from training.rl.experience.episode import join
from training.rl.experience.replay import clock, transitions
from training.rl.rollout.collector import env_spec
from training.rl.runners.chunk_critics import ChunkCritics
from training.rl.runners.frozen_vision import (
    Decisions,
    context_of,
    freeze_vision,
    standardize,
    standardize_inputs,
)
from training.rl.runners.online_algorithm import (
    OnlineAlgorithm,
    OnlineAlgorithmConfig,
    sample_sorted,
)
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.nn import diffusion
from vla.nn.context import Context, repeat_context
from vla.policies.vla import VLAPolicy


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of OGPO."""

    batch_episodes: int = 8
    """Rollouts per update."""
    freeze_vision: bool = False
    """Only the layers behind `VLAPolicy.features` learn, from features that are computed once per
    decision. What the BC loss clones is still encoded in every update."""
    bootstrap_time_limits: bool = False
    """Continue an episode that the time limit cut by the value of its last observation: right where
    the limit is no part of the task. The critics see no clock then. Otherwise the episode ends
    there, without success."""
    states_per_episode: int = 8
    """States of each from which groups are sampled."""
    group_size: int = 16
    """Chains per state."""
    min_sampling_denoising_std: float = 0.05
    """Least standard deviation of a transition, in sampling and in log-probabilities, in normalised
    action units."""
    clip_ploss_coef: float = 0.02
    """Bound of a ratio's change, per number of the chunk."""
    tau: float = 0.05
    """Polyak coefficient of the policy's copy."""
    num_critics: int = 5
    """Q networks in the ensemble."""
    critic_hidden_dim: int = 256
    """Width of their layers."""
    critic_lr: float = 1e-3
    """Their learning rate."""
    utd_ratio: int = 8
    """Critic updates per policy update."""
    critic_batch_size: int = 256
    """Transitions per critic update."""
    critic_tau: float = 0.01
    """Polyak coefficient of their target networks."""
    critic_warmup_steps: int = 400
    """Critic updates before the policy's first."""
    num_target_action_samples: int = 4
    """Chunks that are sampled to value the state after a transition."""
    conservative: bool = False
    """Trust an advantage only where all critics agree on its sign, and then the least of them."""
    actor_loss_coef: float = 1.0
    """Weight of the clipped objective."""
    bc_loss_coeff: float = 0.5
    """Weight of the BC loss."""
    bc_batch_size: int = 12
    """Episodes cloned per update: half of them successful rollouts, once there are any."""

    def __post_init__(self) -> None:
        validate_min(
            self, batch_episodes=1, states_per_episode=1, group_size=2, num_critics=1, utd_ratio=0,
            critic_batch_size=1, critic_warmup_steps=0, num_target_action_samples=1,
            bc_batch_size=2, clip_ploss_coef=0, actor_loss_coef=0, bc_loss_coeff=0,
        )  # fmt: skip

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> VLAPolicy:
        """Return the policy with the layers that the learner's has."""
        return standardize_inputs(policy) if self.freeze_vision else policy

    def learner(self, train: OnlineRLConfig, start: Start) -> "Ogpo":
        """Return the learner of a run."""
        return Ogpo(self, train, start)


class Batch(NamedTuple):
    """Rollouts at some states of which the policy is improved, and what is cloned."""

    decisions: Decisions
    features: Tensor
    """f32 [m, d], what the critics see."""
    bc: EpisodeBatch


class Ogpo(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        head = self.policy.head
        head.config = replace(
            head.config, min_sampling_denoising_std=config.min_sampling_denoising_std
        )
        self.executed = self.policy.config.n_action_steps
        self.time_limit, _ = env_spec(train, self.policy.robot, needs_state=False)
        if config.freeze_vision:
            freeze_vision(self.policy)
        inputs = self.policy.backbone.sizes(0)[0] + 1 + self.executed * head.actions
        self.critics = ChunkCritics(
            inputs, config.num_critics, config.critic_hidden_dim, train.seed,
            lr=config.critic_lr, tau=config.critic_tau,
        )  # fmt: skip
        self.optimizers = {"critics": self.critics.adam}
        self.slow: Any = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)
        """The copy of the policy that follows it."""
        value_net = nn.ModuleDict({"critics": self.critics, "slow": self.slow})
        self.module.value_net = value_net.to(train.device)
        self.features: list[Tensor] = []
        """What the critics see of the decisions and of the end of each rollout."""
        self.policy_features: list[Tensor] = []
        """Those of the policy, where vision is frozen."""
        self.next_chunks = torch.zeros(0, 0, 0, 0)
        self.value_error = 0.0

    def collect(self) -> Batch:
        """Collect rollouts if due; update the critics; return states to improve the policy at."""
        collected = self.collect_rollouts_if_due()
        self._encode()
        if collected:
            if self.config.freeze_vision and self.runner.iteration == 1:
                for policy in (self.policy, self.slow):
                    standardize(policy, torch.cat(self.policy_features))
            self.next_chunks = self._sample_next_chunks()
            episode_store.write_chunks(
                self.runner.start.experience, self.runner.iteration, self.next_chunks.cpu().numpy()
            )
        first = collected and self.runner.iteration == 1
        self._update_critics(self.config.critic_warmup_steps if first else 0)
        episodes, config = self.runner.episodes, self.config
        chosen = self.rng.choice(len(episodes), min(config.batch_episodes, len(episodes)), False)
        self.count_samples([episodes[i] for i in chosen])
        queries = [
            sample_sorted(np.arange(len(episodes[i])), config.states_per_episode, self.rng)
            for i in chosen
        ]
        decisions: Decisions
        if self.config.freeze_vision:
            known = zip(chosen, queries, strict=True)
            decisions = torch.cat([self.policy_features[i][q] for i, q in known])
        else:
            decisions = self.gather([episodes[i] for i in chosen], queries)
        features = [self.features[i][q] for i, q in zip(chosen, queries, strict=True)]
        return Batch(decisions, torch.cat(features), self._bc_batch())

    def update(
        self, data: Batch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the clipped objective and the BC loss once; the copy follows."""
        self.module.eval()
        config = self.config
        surrogate, advantage_std = self._surrogate(data, generator)
        bc_loss, _ = self.policy.bc_loss(data.bc, generator)
        losses = {
            "policy": config.actor_loss_coef * surrogate,
            "bc_loss": config.bc_loss_coeff * bc_loss,
        }
        metrics = optimizer.step(torch.stack(list(losses.values())).sum())
        self._follow()
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {"advantage": advantage_std, "value_error": self.value_error}
        return {**values, **self.log_metrics(metrics), "samples": float(len(data.features))}

    def _surrogate(self, data: Batch, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return the clipped loss of groups of chains, and the deviation of their advantages."""
        config, head = self.config, self.policy.head
        with torch.no_grad():
            before = repeat_context(context_of(self.slow, data.decisions), config.group_size)
            rows = len(data.features) * config.group_size
            noise = torch.randn((rows, *head.noise_shape), generator=generator)
            noise = noise.to(self.policy.device)
            latents, _ = self.slow.head.sample(before, noise, True)
            old = self.log_probs(self.slow.head, before, latents)
            advantage = self.advantages(data.features, latents[:, -1, : self.executed])
        context = repeat_context(context_of(self.policy, data.decisions), config.group_size)
        ratio = (self.log_probs(head, context, latents) - old).exp()
        weighted = (advantage / advantage.std().clamp(min=1e-6))[:, None]
        bounded = ratio.clamp(1 - config.clip_ploss_coef, 1 + config.clip_ploss_coef)
        loss = -torch.minimum(ratio * weighted, bounded * weighted).mean()
        return loss, float(advantage.std())

    def log_probs(self, head: Any, context: Context, latents: Tensor) -> Tensor:
        """Return log-probabilities f32 [m, steps] of transitions, per executed number."""
        log_probs = []
        for i in range(head.config.num_inference_steps):
            mean, std = head.step(i, latents[:, i], context, True)
            mean, latent = mean[:, : self.executed], latents[:, i + 1, : self.executed]
            log_probs.append(diffusion.gaussian_log_prob(latent, mean, std) / latent[0].numel())
        return torch.stack(log_probs, 1)

    def advantages(self, features: Tensor, chunk: Tensor) -> Tensor:
        """Return how much better than its group each chunk is, f32 [m g]; chunks f32 [m g, h, u] of
        a state, with features f32 [m, d], are side by side.
        """
        group_size = self.config.group_size
        value = self.critics(features.repeat_interleave(group_size, 0), chunk)
        value = value.unflatten(1, (-1, group_size))
        better = (value - value.mean(2, keepdim=True)).flatten(1)  # [n, m g]
        return agreed(better) if self.config.conservative else better.mean(0)

    def _bc_batch(self) -> EpisodeBatch:
        """Draw demonstrations, and as many successful rollouts, if there are any."""
        rollouts, half = self.bc_rollouts(), self.config.bc_batch_size // 2
        queries = self.config.states_per_episode
        parts = [self.sample_demos(half if rollouts else 2 * half, queries)]
        if rollouts:
            parts.append(self.sample_rollouts(rollouts, half, queries))
        return self.augment(join(parts))

    @torch.no_grad()
    def _encode(self) -> None:
        """Encode new episodes; make transitions of all."""
        episodes = self.runner.episodes
        if len(self.features) == len(episodes):
            return
        for episode in episodes[len(self.features) :]:
            # What the critics see does not change while the policy learns.
            seen: Decisions = self.boundaries(episode)
            if self.config.freeze_vision:
                seen = self.ref_policy.batch_features(seen)
                self.policy_features.append(seen)
            context = context_of(self.ref_policy, seen)
            time = self.to_device(clock(episode, self.time_limit))
            if self.config.bootstrap_time_limits:
                time = torch.zeros_like(time)
            self.features.append(torch.cat([context.pooled, time[:, None]], 1))
        self.transitions = transitions(
            self.policy, self.features, episodes, self.runner.rewards,
            bootstrap_time_limits=self.config.bootstrap_time_limits,
        )  # fmt: skip

    @torch.no_grad()
    def _sample_next_chunks(self) -> Tensor:
        """Sample chunks of the slow copy at every state of the rollouts: [m, c, h, u]."""
        count, chunks = self.config.num_target_action_samples, []
        generator = torch.Generator().manual_seed(self.run.seed * 1000 + self.runner.iteration)
        for i, episode in enumerate(self.runner.episodes):
            seen = self.policy_features[i] if self.policy_features else self.boundaries(episode)
            context = repeat_context(context_of(self.slow, seen), count)
            noise = torch.randn(
                (len(context.pooled), *self.policy.head.noise_shape), generator=generator
            )
            latents, _ = self.slow.head.sample(context, noise.to(self.policy.device), True)
            chunks.append(latents[:, -1, : self.executed].unflatten(0, (-1, count)))
        return torch.cat(chunks)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().restore(state)
        self.next_chunks = self.to_device(
            episode_store.read_chunks(self.runner.start.experience, self.runner.iteration)
        )

    @torch.no_grad()
    def _update_critics(self, warmup_steps: int) -> None:
        """Update the critics with transitions of all rollouts."""
        data, config = self.transitions, self.config
        count = config.num_target_action_samples
        for _ in range(config.utd_ratio + warmup_steps):
            size = config.critic_batch_size
            i = self.to_device(self.rng.integers(len(data.reward), size=size))
            after = data.state[i] + 1
            features = data.features[after].repeat_interleave(count, 0)
            value = self.critics.slow(features, self.next_chunks[after].flatten(0, 1))
            value = value.mean(0).unflatten(0, (-1, count)).mean(1)
            target = data.reward[i] + self.run.gamma * data.not_terminated[i] * value
            features = data.features[data.state[i]]
            self.value_error = self.critics.update(features, data.chunk[i], target)

    @torch.no_grad()
    def _follow(self) -> None:
        pairs = zip(self.slow.state_dict().values(), self.policy.state_dict().values(), strict=True)
        for slow, value in pairs:
            if value.is_floating_point():
                slow.lerp_(value, self.config.tau)


def agreed(better: Tensor) -> Tensor:
    """Return, of advantages f32 [n, m] by n critics, the one nearest 0 where all agree, else 0."""
    least, most = better.min(0).values, better.max(0).values
    return torch.where(least > 0, least, torch.where(most < 0, most, 0.0))
