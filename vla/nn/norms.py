"""Standardisation by running statistics, over the rows of all processes that train together."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class Standardize(nn.BatchNorm1d):
    """`BatchNorm1d` without learned scale, whose batch is that of a whole group of processes.

    PyTorch's own SyncBatchNorm knows no CPU. A batch of a single row has no deviation of its own:
    it is standardised by the running statistics and leaves them alone.
    """

    group: Any = None
    """Process group that shares out batches; None where a batch is all here."""

    def __init__(self, width: int) -> None:
        super().__init__(width, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows f32 [b, width] with mean 0 and deviation 1 over the batch, or over the past
        when not in training.
        """
        if not self.training or (self.group is None and len(x) == 1):
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        if self.group is None:
            return super().forward(x)
        count = int(_sum(x.new_tensor([float(len(x))]), self.group))
        if count == 1:
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        mean = _sum(x.sum(0), self.group) / count
        variance = _sum((x - mean).square().sum(0), self.group) / count
        self._remember(mean, variance * count / (count - 1))
        return (x - mean) / (variance + self.eps).sqrt()

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        share = self.momentum
        assert share is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
        self.num_batches_tracked.add_(1)


def _sum(x: Tensor, group: Any) -> Tensor:
    """Return the sum over processes; gradients are summed as well."""
    found: Tensor = all_reduce(x, group=group)
    return found
