"""An ensemble of values of action chunks, with its slow copy and its own optimiser.

All of its state are buffers of one module: it is saved, restored and copied with the policy's run.
"""

import math

import torch
from torch import Tensor, nn

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
        shapes = {
            "w1": (count, inputs, width), "b1": (count, 1, width), "w2": (count, width, width),
            "b2": (count, 1, width), "w3": (count, width, 1), "b3": (count, 1, 1),
        }  # fmt: skip
        for name, shape in shapes.items():
            scale = 0.0 if name[0] == "b" else 1.0 / math.sqrt(shape[1])
            value = torch.randn(shape, generator=generator) * scale
            self.register_buffer(name, value)
            self.register_buffer(f"slow_{name}", value.clone())
            self.register_buffer(f"mean_{name}", torch.zeros(shape))
            self.register_buffer(f"square_{name}", torch.zeros(shape))
        self.names = tuple(shapes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor, chunk: Tensor, slow: bool = False) -> Tensor:
        """Return values f32 [n, m] of chunks f32 [m, h, u] at features f32 [m, d]."""
        prefix = "slow_" if slow else ""
        return _values({n: getattr(self, prefix + n) for n in self.names}, features, chunk)

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
        weights = {n: getattr(self, n).detach().requires_grad_() for n in self.names}
        with torch.enable_grad():
            error = (_values(weights, features, chunk) - target).square().mean(1).sum()
            slopes = torch.autograd.grad(error, list(weights.values()))
        self.steps += 1
        decay, decay_square, least = ADAM
        count = int(self.steps)
        for name, slope in zip(self.names, slopes, strict=True):
            mean, square = getattr(self, f"mean_{name}"), getattr(self, f"square_{name}")
            mean.lerp_(slope, 1 - decay)
            square.lerp_(slope.square(), 1 - decay_square)
            step = mean / (1 - decay**count)
            step = step / ((square / (1 - decay_square**count)).sqrt() + least)
            getattr(self, name).sub_(rate * step)
            getattr(self, f"slow_{name}").lerp_(getattr(self, name), follow)
        return float(error.detach()) / len(weights["b3"])


def _values(weights: dict[str, Tensor], features: Tensor, chunk: Tensor) -> Tensor:
    x = torch.cat([features, chunk.flatten(1)], 1)[None]
    for layer in ("1", "2"):
        x = x @ weights["w" + layer] + weights["b" + layer]
        # Without it, values of chunks never seen grow without bound (Ball et al. 2023, RLPD).
        x = nn.functional.mish(nn.functional.layer_norm(x, x.shape[-1:]))
    return (x @ weights["w3"] + weights["b3"])[..., 0]
