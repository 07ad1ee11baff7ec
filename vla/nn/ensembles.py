"""An ensemble of value networks of features and a chunk; `chunk_critics` trains it."""

import itertools
import math

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """N networks with two hidden layers, evaluated together: a layer is one batched product.

    The weights take no gradient: `training.rl.runners.chunk_critics` trains them, or they are
    copied in and saved with a policy.

    Args:
        inputs: Numbers of features and chunk together.
        count: N.
        width: Of the two hidden layers.
        generator: Source of the weights; torch's global one if None. Biases are 0.
    """

    def __init__(
        self, inputs: int, count: int, width: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        sizes = (inputs, width, width, 1)
        for layer, (into, out) in enumerate(itertools.pairwise(sizes), 1):
            for name, rows, scale in (("w", into, 1 / math.sqrt(into)), ("b", 1, 0.0)):
                value = scale * torch.randn((count, rows, out), generator=generator)
                self.register_parameter(f"{name}{layer}", nn.Parameter(value, requires_grad=False))

    def forward(self, features: Tensor, chunk: Tensor) -> Tensor:
        """Return values f32 [n, m] of chunks f32 [m, h, u] at features f32 [m, d]."""
        x = torch.cat([features, chunk.flatten(1)], 1)[None]
        for weight, bias in ((self.w1, self.b1), (self.w2, self.b2)):
            x = x @ weight + bias
            # Without layer norm, values of unseen chunks diverge (RLPD, Ball et al. 2023).
            x = nn.functional.mish(nn.functional.layer_norm(x, x.shape[-1:]))
        return (x @ self.w3 + self.b3)[..., 0]


def lower_confidence_bound(value: Tensor, lcb_coef: float) -> Tensor:
    """Return mean minus `lcb_coef` standard deviations f32 [m] of N values f32 [n, m]."""
    return value.mean(0) - lcb_coef * value.std(0, correction=0)
