"""Filtered behaviour cloning: collect rollouts, keep the successes, clone them with the
demonstrations.

It needs no likelihood and no value: the baseline for the other algorithms. Success is what the
source of the reward predicts. Where a simulator says where the things are that an instruction
names, all rollouts teach the policy's queries to find them, failures as well.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience.episode import join
from training.rl.rollout.explorer import Explorer
from training.rl.runners.online_algorithm import (
    BCRollout,
    OnlineAlgorithm,
    OnlineAlgorithmConfig,
)
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.policies.vla import VLAPolicy


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of filtered behaviour cloning."""

    batch_size: int = 16
    """Episodes per update."""
    states_per_episode: int = 8
    """Decisions of each episode that carry a loss."""
    stochastic_denoising: bool = True
    """Whether rollouts draw noise in every denoising step, or act as the policy is used, with
    noise at the start alone: with few steps the former costs most of the successes."""
    num_failures: int = 4
    """Failed rollouts per update that teach the queries where to look, and nothing else."""

    def __post_init__(self) -> None:
        validate_min(self, batch_size=2, states_per_episode=1, num_failures=0)

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> VLAPolicy | Explorer:
        """Return what acts in rollouts."""
        policy.stochastic_denoising = self.stochastic_denoising
        return super().acting_policy(policy, train)

    def learner(self, train: OnlineRLConfig, start: Start) -> "FilteredBC":
        """Return the learner of a run."""
        return FilteredBC(self, train, start)


class FilteredBC(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config

    def collect(self) -> EpisodeBatch:
        """Collect rollouts if due; return demonstrations, successes, and failures that only teach
        where to look.
        """
        self.collect_rollouts_if_due()
        rollouts = self.bc_rollouts()
        queries, batch_size = self.config.states_per_episode, self.config.batch_size
        from_rollouts = sum(len(frames) for _, frames in rollouts)
        share = from_rollouts / (from_rollouts + len(self.runner.demos.frames))
        # Every frame counts alike, but some are always demonstrations.
        count = min(self.rng.binomial(batch_size, share), batch_size - 1) if rollouts else 0
        parts = [self.sample_demos(batch_size - count, queries)]
        if count:
            parts.append(self.sample_rollouts(rollouts, count, queries))
        failures, count = self._failures(), self.config.num_failures
        if failures and count:
            # In one batch with the others: what is standardised over a batch must see a mixture.
            failed = self.sample_rollouts(failures, count, queries)
            nothing = torch.zeros_like(torch.as_tensor(failed.weight))
            parts.append(replace(failed, weight=nothing, grounding_weight=nothing + 1))
        return self.augment(join(parts))

    def _failures(self) -> list[BCRollout]:
        """Return the failed rollouts of which it is known where the things are, with all frames."""
        if not self.config.grounding_loss_coef:
            return []
        pairs = zip(self.runner.episodes, self.runner.rewards, strict=True)
        failed = [e for e, reward in pairs if not reward.success and len(e.referents)]
        return [(e, np.arange(len(e.step) - 1)) for e in failed]

    def update(
        self, data: EpisodeBatch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the BC loss once."""
        loss, parts = self.policy.bc_loss(data, generator)
        metrics = optimizer.step(loss)
        values = {name: float(value) for name, value in parts.items()}
        return {**values, **self.log_metrics(metrics), "samples": float(len(data.loss_index))}
