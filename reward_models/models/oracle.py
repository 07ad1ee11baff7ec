"""The simulator's progress as a reward model: an upper bound, and for tests; not for a robot."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reward_models.core.interface import FrameScores, PairScores, Reference
from vla.contracts.config import PluginConfig
from vla.contracts.types import Frames

STEEP = 40.0
"""Logits per unit of progress."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """It has no settings."""

    def build(self, tokenizer: Tokenizer | None = None) -> "OracleRewardModel":
        """Return the reward model; it has no vocabulary."""
        return OracleRewardModel()


class OracleRewardModel(torch.nn.Module):
    """Satisfies `reward_models.core.interface.RewardModelNetwork`.

    An embedding is (progress, success).
    """

    cameras: tuple[str, ...] = ()

    def initial_memory(self, batch: int) -> Tensor:
        """Return an empty memory, [b, 0]."""
        return torch.zeros(batch, 0)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the truth [f, 2].

        Raises:
            ValueError: the frames carry no truth.
        """
        if frames.truth is None:
            raise ValueError(
                "reward model 'oracle' needs the simulator's progress and success, got frames "
                "without; use it on episodes that `vla demos` recorded"
            )
        return torch.as_tensor(frames.truth), memory

    def score(self, frames: Tensor, first: Tensor, reference: Reference | None) -> FrameScores:
        """Return the truth."""
        value, success = frames.unbind(1)
        done = STEEP * (success - 0.5)
        return FrameScores(value, torch.zeros_like(value), done, torch.full_like(value, STEEP))

    def compare(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> PairScores:
        """Return the true difference."""
        difference = (b - a)[:, 0]
        still = torch.full_like(difference, STEEP * 0.02)
        trend = torch.stack([-STEEP * difference, still, STEEP * difference], 1)
        return PairScores(difference, trend)
