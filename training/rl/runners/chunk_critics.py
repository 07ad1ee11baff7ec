"""An ensemble of Q functions of action chunks, with its target networks and its own Adam."""

import itertools
import math

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """N networks with two hidden layers, evaluated together: a layer is one batched product.

    The weights take no gradient outside of `ChunkCritics.update`.

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


class ChunkCritics(Ensemble):
    """N networks Q(features, chunk), and `slow`, the target networks that follow them with Polyak
    coefficient `tau`; other arguments as of `Ensemble`.

    A run saves the weights with its module, and the state of `adam` with that of the optimizers
    that a learner names.
    """

    def __init__(
        self, inputs: int, count: int, width: int, seed: int, *, lr: float, tau: float
    ) -> None:
        super().__init__(inputs, count, width, torch.Generator().manual_seed(seed))
        self.adam = torch.optim.Adam(self.parameters(), lr=lr, fused=True)
        self.slow = Ensemble(inputs, count, width)
        self.slow.load_state_dict(self.weights())
        self.tau = tau

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the networks, without those of the target networks."""
        return dict(self.named_parameters(recurse=False))

    def update(self, features: Tensor, chunk: Tensor, target: Tensor) -> float:
        """Descend the mean squared error of chunks f32 [m, h, u] at features f32 [m, d] to targets
        f32 [m] once; the target networks follow. Return the error before, the mean over networks.
        """
        weights = list(self.weights().values())
        for weight in weights:
            weight.requires_grad_()
        with torch.enable_grad():
            error = (self(features, chunk) - target).square().mean(1)
            error.sum().backward(inputs=weights)
        self.adam.step()
        self.adam.zero_grad()
        for weight, slow in zip(weights, self.slow.parameters(), strict=True):
            slow.lerp_(weight.requires_grad_(requires_grad=False), self.tau)
        return float(error.detach().mean())
