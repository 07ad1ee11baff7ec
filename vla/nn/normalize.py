"""Scaling of proprioception and actions between physical and normalised units."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

MIN_RANGE = 0.05
"""Ranges and deviations below this (rad or m) are not stretched: that would amplify noise."""


@dataclass(frozen=True, kw_only=True)
class NormalizationStatistics:
    """Per-channel statistics of a data set, in physical units."""

    state_mean: tuple[float, ...]
    """Mean of proprioception."""
    state_std: tuple[float, ...]
    """Standard deviation of proprioception."""
    action_low: tuple[float, ...]
    """Smallest action."""
    action_high: tuple[float, ...]
    """Largest action."""


class Normalizer(nn.Module):
    """Standardises proprioception, maps actions to [-1, 1]; its buffers live in the checkpoint."""

    def __init__(self, statistics: NormalizationStatistics) -> None:
        super().__init__()
        low, high = torch.tensor(statistics.action_low), torch.tensor(statistics.action_high)
        self.register_buffer("state_mean", torch.tensor(statistics.state_mean))
        self.register_buffer("state_std", torch.tensor(statistics.state_std).clamp(min=MIN_RANGE))
        self.register_buffer("action_center", (high + low) / 2)
        self.register_buffer("action_scale", (high - low).clamp(min=MIN_RANGE) / 2)

    def state(self, proprio: Tensor) -> Tensor:
        """Return f32 [..., s] with mean 0 and deviation 1 over the data set."""
        return (proprio - self.state_mean) / self.state_std

    def action(self, values: Tensor) -> Tensor:
        """Return f32 [..., u] in [-1, 1] over the data set."""
        return (values - self.action_center) / self.action_scale

    def action_inverse(self, values: Tensor) -> Tensor:
        """Return f32 [..., u] in physical units."""
        return values * self.action_scale + self.action_center
