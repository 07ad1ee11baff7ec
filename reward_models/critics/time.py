"""The control every report must show: t/T. It looks at nothing but the length of the episode."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reward_models.critic import Change, Moment, Shown
from vla.contracts.config import PluginConfig
from vla.contracts.types import Frames

STEEP = 40.0
"""Logits per unit of progress; certain of itself, as a clock is."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """There is nothing to set."""

    def build(self, tokenizer: Tokenizer | None = None) -> "TimeCritic":
        """Return the critic; it reads nothing."""
        return TimeCritic()


class TimeCritic(torch.nn.Module):
    """Satisfies `reward_models.critic.Critic`; an embedding is t/T."""

    cameras: tuple[str, ...] = ()

    def remember(self, batch: int) -> Tensor:
        """Return nothing to keep."""
        return torch.zeros(batch, 0)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return t/T [f, 1].

        Raises:
            ValueError: the frames do not say how long their episodes are.
        """
        if frames.end_s is None:
            raise ValueError(
                "critic 'time' needs the length of every episode, which no running arm knows; use "
                "it on recorded episodes"
            )
        share = torch.as_tensor(frames.time_s) / torch.as_tensor(frames.end_s).clamp(min=1e-9)
        return share.float().clamp(0.0, 1.0)[:, None], memory

    def judge(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Moment:
        """Progress is time; done at the end."""
        value = frames[:, 0]
        return Moment(
            value, torch.zeros_like(value), STEEP * (value - 0.95), torch.full_like(value, STEEP)
        )

    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> Change:
        """Time always goes forward."""
        difference = (b - a)[:, 0]
        still = torch.full_like(difference, STEEP * 0.02)
        trend = torch.stack([-STEEP * difference, still, STEEP * difference], 1)
        return Change(difference, trend)
