"""Filtered behaviour cloning: practise, keep what succeeded, clone it beside the demonstrations.

It needs no likelihood and no value: the fallback, and the control of everything cleverer. What
counts as success is what the reward's source says.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from training.optimiser import Optimiser
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode, gather, join
from training.rl.practitioner import Practitioner
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of filtered cloning."""

    batch: int = 16
    """Episodes per update."""
    practised: float = 0.5
    """Share of them from practice, where there are successes; the others are demonstrations."""
    queries: int = 8
    """Decisions per episode that carry a loss."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=2, queries=1, practised=0)
        if self.practised > 1:
            raise ValueError(f"practised: got {self.practised}, expected at most 1")

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
        own = self.rounds
        good = [e for e, w in zip(own.episodes, own.worth, strict=True) if w.success]
        few = round(self.config.batch * self.config.practised) if good else 0
        parts = []
        if few < self.config.batch:
            parts.append(self.demonstrated(self.config.batch - few, self.config.queries))
        if few:
            parts.append(self._practised(good, few))
        return join(parts)

    def _practised(self, good: list[Episode], count: int) -> EpisodeBatch:
        chosen = [good[i] for i in self.rng.choice(len(good), count)]
        queries = [
            np.sort(self.rng.choice(len(e), min(self.config.queries, len(e)), replace=False))
            for e in chosen
        ]
        return gather(chosen, queries, self.policy.config.chunk, self.policy.views)

    def update(
        self, data: EpisodeBatch, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the cloning loss once."""
        loss, parts = self.policy.bc_loss(data, generator)
        figures = optimiser.step_(loss)
        values = {name: float(value) for name, value in parts.items()}
        return {**values, **figures, **self.figures, "samples": float(len(data.query))}
