"""An ensemble of values of action chunks, with its slow copy and its own optimiser.

All of its state are buffers of one module: it is saved, restored and copied with the policy's run.
"""

import torch
from torch import Tensor, nn

from vla.nn import ensembles

ADAM = (0.9, 0.999, 1e-8)
"""Decays of the moments and the least denominator (Kingma and Ba 2015)."""


class ChunkCritics(nn.Module):
    """N networks Q(features, chunk), evaluated side by side.

    Args:
        inputs: Numbers of features and chunk together.
        count: N.
        width: Of the two hidden layers.
        seed: Of the weights.
    """

    def __init__(self, inputs: int, count: int, width: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, value in ensembles.fresh(inputs, count, width, generator).items():
            self.register_buffer(name, value)
            self.register_buffer(f"slow_{name}", value.clone())
            self.register_buffer(f"mean_{name}", torch.zeros_like(value))
            self.register_buffer(f"square_{name}", torch.zeros_like(value))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor, chunk: Tensor, slow: bool = False) -> Tensor:
        """Return values f32 [n, m] of chunks f32 [m, h, u] at features f32 [m, d]."""
        return ensembles.values(self.weights(slow), features, chunk)

    def weights(self, slow: bool = False) -> dict[str, Tensor]:
        """Return the weights of the networks, or of their slow copy."""
        prefix = "slow_" if slow else ""
        return {name: getattr(self, prefix + name) for name in ensembles.NAMES}

    def learn_(
        self, features: Tensor, chunk: Tensor, target: Tensor, *, rate: float, follow: float
    ) -> float:
        """Descend the mean squared error to targets f32 [m] once; the slow copy follows.

        Args:
            features: f32 [m, d].
            chunk: f32 [m, h, u].
            target: f32 [m], the same for all networks.
            rate: Learning rate (Adam).
            follow: Share of the way that the slow copy goes.

        Returns:
            The error before.
        """
        weights = {n: w.detach().requires_grad_() for n, w in self.weights().items()}
        with torch.enable_grad():
            error = (ensembles.values(weights, features, chunk) - target).square().mean(1).sum()
            slopes = torch.autograd.grad(error, list(weights.values()))
        self.steps += 1
        decay, decay_square, least = ADAM
        count = int(self.steps)
        for name, slope in zip(ensembles.NAMES, slopes, strict=True):
            mean, square = getattr(self, f"mean_{name}"), getattr(self, f"square_{name}")
            mean.lerp_(slope, 1 - decay)
            square.lerp_(slope.square(), 1 - decay_square)
            step = mean / (1 - decay**count)
            step = step / ((square / (1 - decay_square**count)).sqrt() + least)
            getattr(self, name).sub_(rate * step)
            getattr(self, f"slow_{name}").lerp_(getattr(self, name), follow)
        return float(error.detach()) / len(weights["b3"])
