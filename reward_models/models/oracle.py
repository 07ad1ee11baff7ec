"""The simulator's progress as a reward model: an upper bound, and for tests; not for a robot."""

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

    def build(self, tokenizer: Tokenizer | None = None) -> "OracleRewardModel":
        """Return the reward model; it has no vocabulary."""
        return OracleRewardModel()


class OracleRewardModel(KnownProgress):
    """Satisfies `reward_models.core.interface.RewardModelNetwork`.

    An embedding is (progress, success).
    """

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
