"""Filtered behaviour cloning: practise, keep what succeeded, clone it beside the demonstrations.

It needs no likelihood and no value: the fallback, and the control of everything cleverer. What
counts as success is what the reward's source says.
"""

from dataclasses import dataclass
from typing import Any

import torch

from training.optimiser import Optimiser
from training.rl.config import PracticeConfig, Start
from training.rl.experience import join
from training.rl.practitioner import Practitioner
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of filtered cloning."""

    batch: int = 16
    """Episodes per update."""
    queries: int = 8
    """Decisions per episode that carry a loss."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=2, queries=1)

    def start(self, train: Any, data: Any) -> "FilteredCloning":
        """Load the policy to lift, its demonstrations and the critic.

        Raises:
            ValueError: the run is not one of practice, or something to start from is damaged.
        """
        if not (isinstance(train, PracticeConfig) and isinstance(data, Start)):
            raise ValueError("algo filtered_bc learns from practice: use `vla train rl`")
        return FilteredCloning(self, train, data)


class FilteredCloning(Practitioner):
    """Satisfies `training.loop.Learner`."""

    def __init__(self, config: Config, train: PracticeConfig, start: Start) -> None:
        super().__init__(train, start)
        self.config = config

    def collect(self) -> EpisodeBatch:
        """Practise if it is time; return demonstrations and successes."""
        self.practise_if_due_()
        lessons, queries, batch = self.lessons(), self.config.queries, self.config.batch
        own, shown = sum(len(moments) for _, moments in lessons), len(self.rounds.demos.frames)
        # Every moment counts alike, but some are always demonstrations.
        few = min(self.rng.binomial(batch, own / (own + shown)), batch - 1) if own else 0
        parts = [self.demonstrated(batch - few, queries)]
        if few:
            parts.append(self.practised(lessons, few, queries))
        return self.shaken(join(parts))

    def update(
        self, data: EpisodeBatch, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the cloning loss once."""
        loss, parts = self.policy.bc_loss(data, generator)
        figures = optimiser.step_(loss)
        values = {name: float(value) for name, value in parts.items()}
        return {**values, **self.told(figures), "samples": float(len(data.query))}
