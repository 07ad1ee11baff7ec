"""Networks from features and a chunk to a value, evaluated side by side; none learns here."""

import math

import torch
from torch import Tensor, nn

NAMES = ("w1", "b1", "w2", "b2", "w3", "b3")
"""Weights of N networks with two hidden layers."""


def fresh(
    inputs: int, count: int, width: int, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Return weights f32 [count, ...] of networks of `inputs` numbers, with no bias."""
    shapes = dict(zip(NAMES, (
        (count, inputs, width), (count, 1, width), (count, width, width), (count, 1, width),
        (count, width, 1), (count, 1, 1),
    ), strict=True))  # fmt: skip
    scale = {name: 0.0 if name[0] == "b" else 1.0 / math.sqrt(s[1]) for name, s in shapes.items()}
    return {n: torch.randn(s, generator=generator) * scale[n] for n, s in shapes.items()}


def values(weights: dict[str, Tensor], features: Tensor, chunk: Tensor) -> Tensor:
    """Return what N networks say, f32 [n, m], of chunks f32 [m, h, u] at features f32 [m, d]."""
    x = torch.cat([features, chunk.flatten(1)], 1)[None]
    for layer in ("1", "2"):
        x = x @ weights["w" + layer] + weights["b" + layer]
        # Without it, values of chunks never seen grow without bound (Ball et al. 2023, RLPD).
        x = nn.functional.mish(nn.functional.layer_norm(x, x.shape[-1:]))
    return (x @ weights["w3"] + weights["b3"])[..., 0]


def cautious(value: Tensor, pessimism: float) -> Tensor:
    """Return one value f32 [m] of those of N networks f32 [n, m]: their mean, less so many of their
    deviations.
    """
    return value.mean(0) - pessimism * value.std(0, correction=0)


class Ensemble(nn.Module):
    """N networks as buffers: what is learned elsewhere is copied in, and saved with a policy."""

    def __init__(self, inputs: int, count: int, width: int) -> None:
        super().__init__()
        for name, value in fresh(inputs, count, width).items():
            self.register_buffer(name, value)

    def forward(self, features: Tensor, chunk: Tensor) -> Tensor:
        """Return values f32 [n, m]."""
        return values({name: getattr(self, name) for name in NAMES}, features, chunk)
