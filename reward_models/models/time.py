"""The control t/T: progress from the time and the length of the episode alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reward_models.core.interface import FrameScores, Reference
from reward_models.core.known_progress import STEEP, KnownProgress
from vla.contracts.config import PluginConfig
from vla.contracts.types import Frames


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """It has no settings."""

    def build(self, tokenizer: Tokenizer | None = None) -> "TimeRewardModel":
        """Return the reward model; it has no vocabulary."""
        return TimeRewardModel()


class TimeRewardModel(KnownProgress):
    """Satisfies `reward_models.core.interface.RewardModelNetwork`; an embedding is t/T."""

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return t/T [f, 1].

        Raises:
            ValueError: the frames lack the length of their episodes.
        """
        if frames.end_s is None:
            raise ValueError(
                "reward model 'time' needs the length of every episode, got frames without; use it "
                "on recorded episodes"
            )
        share = torch.as_tensor(frames.time_s) / torch.as_tensor(frames.end_s).clamp(min=1e-9)
        return share.float().clamp(0.0, 1.0)[:, None], memory

    def score(self, frames: Tensor, first: Tensor, reference: Reference | None) -> FrameScores:
        """Return t/T as progress, and done at the end."""
        value = frames[:, 0]
        return FrameScores(
            value, torch.zeros_like(value), STEEP * (value - 0.95), torch.full_like(value, STEEP)
        )
