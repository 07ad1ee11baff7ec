"""Standardisation by running statistics, over the rows of all processes that train together."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class Standardize(nn.BatchNorm1d):
    """`BatchNorm1d` without learned scale, whose batch is that of a whole group of processes.

    PyTorch's SyncBatchNorm does not support the CPU. A batch of one row has no deviation: it is
    standardised by the running statistics and does not change them.

    Sums are in float64: where rows hardly differ, their difference from the mean and its gradient
    would be rounding errors in float32, which depend on how a batch is shared out.
    """

    group: Any = None
    """Process group that shares out batches; None where a batch is all here."""

    def __init__(self, width: int) -> None:
        super().__init__(width, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows f32 [b, width] with mean 0 and deviation 1 over the batch, or over the past
        when not in training.
        """
        count = int(self._sum(torch.tensor(len(x), device=x.device))) if self.training else 1
        if count == 1:
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        wide = x.double()
        mean = self._sum(wide.sum(0)) / count
        variance = self._sum((wide - mean).square().sum(0)) / count
        self._remember(mean, variance * count / (count - 1))
        return ((wide - mean) / (variance + self.eps).sqrt()).to(x.dtype)

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum over processes; gradients are summed as well."""
        if self.group is None:
            return x
        total: Tensor = all_reduce(x, group=self.group)
        return total

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        share = self.momentum
        assert share is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)
        self.num_batches_tracked.add_(1)
