"""Filtered behaviour cloning: collect rollouts, keep the successes, clone them with the
demonstrations.

It needs no likelihood and no value: the baseline for the other algorithms. Success is what the
source of the reward predicts.
"""

from dataclasses import dataclass

import torch

from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience.episode import join
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of filtered behaviour cloning."""

    batch_size: int = 16
    """Episodes per update."""
    states_per_episode: int = 8
    """Decisions of each episode that carry a loss."""

    def __post_init__(self) -> None:
        validate_min(self, batch_size=2, states_per_episode=1)

    def learner(self, train: OnlineRLConfig, start: Start) -> "FilteredBC":
        """Return the learner of a run."""
        return FilteredBC(self, train, start)


class FilteredBC(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config

    def collect(self) -> EpisodeBatch:
        """Collect rollouts if due; return demonstrations and successes."""
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
        return self.augment(join(parts))

    def update(
        self, data: EpisodeBatch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the BC loss once."""
        loss, parts = self.policy.bc_loss(data, generator)
        metrics = optimizer.step(loss)
        values = {name: float(value) for name, value in parts.items()}
        return {**values, **self.log_metrics(metrics), "samples": float(len(data.loss_index))}
