"""Base of reward models that know progress without looking at images."""

import torch
from torch import Tensor

from reward_models.core.interface import PairScores, Reference

STEEP = 40.0
"""Logits per unit of progress: they are always certain."""


class KnownProgress(torch.nn.Module):
    """A reward model without memory or cameras, whose embeddings begin with progress."""

    cameras: tuple[str, ...] = ()

    def initial_memory(self, batch: int) -> Tensor:
        """Return an empty memory, [b, 0]."""
        return torch.zeros(batch, 0)

    def compare(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> PairScores:
        """Return the difference of progress."""
        difference = (b - a)[:, 0]
        still = torch.full_like(difference, STEEP * 0.02)
        trend = torch.stack([-STEEP * difference, still, STEEP * difference], 1)
        return PairScores(difference, trend)
