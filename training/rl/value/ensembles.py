"""An ensemble of Q functions of action chunks, evaluated together."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """N perceptrons: a layer of all of them is one batched product.

    The weights take no gradient outside of an update.

    Args:
        inputs: Numbers of state and chunk together.
        count: N.
        hidden_dims: Width of each hidden layer.
        generator: Source of the weights; torch's global one if None. Biases are 0.
        activation: Follows the layer norm of a hidden layer.
    """

    def __init__(
        self, inputs: int, count: int, hidden_dims: Sequence[int],
        generator: torch.Generator | None = None, *,
        activation: Callable[[Tensor], Tensor] = nn.functional.mish,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation, self.layers = activation, len(hidden_dims) + 1
        for layer, (into, out) in enumerate(itertools.pairwise((inputs, *hidden_dims, 1)), 1):
            for name, rows, scale in (("w", into, 1 / math.sqrt(into)), ("b", 1, 0.0)):
                value = scale * torch.randn((count, rows, out), generator=generator)
                self.register_parameter(f"{name}{layer}", nn.Parameter(value, requires_grad=False))

    def forward(self, state: Tensor, chunk: Tensor) -> Tensor:
        """Return numbers f32 [n, m] of chunks f32 [m, h, u] in states f32 [m, s]."""
        x = torch.cat([state, chunk.flatten(1)], 1)[None]
        for layer in range(1, self.layers):
            x = x @ getattr(self, f"w{layer}") + getattr(self, f"b{layer}")
            # Without layer norm, values of unseen chunks diverge (RLPD, Ball et al. 2023).
            x = self.activation(nn.functional.layer_norm(x, x.shape[-1:]))
        return (x @ getattr(self, f"w{self.layers}") + getattr(self, f"b{self.layers}"))[..., 0]
