"""The simulator's own progress as a critic: for tests and as upper bound, never on a robot."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reward_models.critic import Change, Moment, Shown
from vla.contracts.config import PluginConfig
from vla.contracts.types import Frames

STEEP = 40.0
"""Logits per unit of progress."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """There is nothing to set."""

    def build(self, tokenizer: Tokenizer | None = None) -> "OracleCritic":
        """Return the critic; it reads nothing."""
        return OracleCritic()


class OracleCritic(torch.nn.Module):
    """Satisfies `reward_models.critic.Critic`; an embedding is (progress, success)."""

    cameras: tuple[str, ...] = ()

    def remember(self, batch: int) -> Tensor:
        """Return nothing to keep."""
        return torch.zeros(batch, 0)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the truth [f, 2].

        Raises:
            ValueError: the frames carry no truth.
        """
        if frames.truth is None:
            raise ValueError(
                "critic 'oracle' needs the simulator's progress and success; use it on episodes "
                "that `vla demos` recorded"
            )
        return torch.as_tensor(frames.truth), memory

    def judge(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Moment:
        """Return the truth."""
        value, success = frames.unbind(1)
        done = STEEP * (success - 0.5)
        return Moment(value, torch.zeros_like(value), done, torch.full_like(value, STEEP))

    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> Change:
        """Return the true difference."""
        difference = (b - a)[:, 0]
        still = torch.full_like(difference, STEEP * 0.02)
        trend = torch.stack([-STEEP * difference, still, STEEP * difference], 1)
        return Change(difference, trend)
