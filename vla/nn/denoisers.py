"""Networks that predict the clean action chunk from a noisy one; both take the same arguments.

A network takes chunks of `actions` channels, or of fewer, which it pads with zeros.
A network made with `prefix` also reads a mask of the prefix actions, which enter without noise.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from vla.nn.context import Context


def timestep_features(t: Tensor, width: int) -> Tensor:
    """Return sinusoidal features f32 [b, width] of timesteps t [b] (Vaswani et al. 2017, 3.5)."""
    half = width // 2
    rates = torch.exp(-math.log(10_000.0) * torch.arange(half, device=t.device) / half)
    phase = t.float()[:, None] * rates
    return torch.cat([phase.sin(), phase.cos()], 1)


def widened(values: Tensor, width: int) -> Tensor:
    """Return values f32 [..., u] with zeros up to a width, f32 [..., width]."""
    missing = width - values.shape[-1]
    return pad(values, (0, missing)) if missing else values


class MlpDenoiser(nn.Module):
    """Residual MLP over the flattened chunk: little compute, learns fast from few updates."""

    def __init__(
        self, chunk: int, actions: int, sizes: tuple[int, int, int], width: int, depth: int,
        prefix: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        pooled, _, _ = sizes
        self.chunk, self.actions = chunk, actions
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.condition = nn.Linear(pooled, width)
        self.enter = nn.Linear(chunk * actions, width)
        self.prefix_embedding = nn.Linear(chunk, width, bias=False) if prefix else None
        self.blocks = nn.ModuleList(_MlpBlock(width) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, chunk * actions))

    def forward(
        self, latent: Tensor, t: Tensor, context: Context, prefix_mask: Tensor | None = None
    ) -> Tensor:
        """Return the prediction f32 [b, k, u] for latent f32 [b, k, u] at timestep t i64 [b];
        prefix_mask f32 [b, k] is 1 where the latent is a fixed action.
        """
        channels = latent.shape[2]
        h = self.enter(widened(latent, self.actions).flatten(1)) + self.time(
            timestep_features(t, 64)
        )
        if self.prefix_embedding is not None and prefix_mask is not None:
            h = h + self.prefix_embedding(prefix_mask)
        condition = self.condition(context.pooled)
        h = h + condition
        for block in self.blocks:
            h = block(h, condition)
        return self.leave(h).unflatten(1, (self.chunk, self.actions))[..., :channels]


class _MlpBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        # net([norm(h), condition]) with its first product split: the product with the condition is
        # the same at every step, and an engine that sees the whole chain computes it once.
        enter, width = self.net[0], h.shape[1]
        of_h, of_condition = enter.weight[:, :width], enter.weight[:, width:]
        x = linear(self.norm(h), of_h) + linear(condition, of_condition, enter.bias)
        return h + self.net[2](self.net[1](x))


class TransformerDenoiser(nn.Module):
    """Diffusion transformer (Peebles and Xie 2023) over the chunk's actions.

    Each block attends to the chunk and to the observation's tokens. Adaptive layer norm is driven
    by timestep, pooled observation and retrieved memory, zero-initialised so that a block starts
    as the identity.
    """

    def __init__(
        self, chunk: int, actions: int, sizes: tuple[int, int, int], width: int, depth: int,
        prefix: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        pooled, token, memory = sizes
        self.enter = nn.Linear(actions, width)
        self.position = nn.Parameter(torch.randn(chunk, width) * 0.02)
        self.prefix_embedding = nn.Parameter(torch.randn(width) * 0.02) if prefix else None
        self.tokens = nn.Linear(token, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.condition = nn.Linear(pooled, width)
        self.memory = nn.Linear(memory, width)
        self.blocks = nn.ModuleList(_DitBlock(width, max(1, width // 64)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, actions)

    def forward(
        self, latent: Tensor, t: Tensor, context: Context, prefix_mask: Tensor | None = None
    ) -> Tensor:
        """Return the prediction f32 [b, k, u] for latent f32 [b, k, u] at timestep t i64 [b];
        prefix_mask f32 [b, k] is 1 where the latent is a fixed action.
        """
        drive = self.time(timestep_features(t, 64)) + self.condition(context.pooled)
        drive = nn.functional.silu(drive + self.memory(context.memory))
        tokens = torch.cat(
            [self.tokens(context.tokens), self.condition(context.pooled)[:, None]], 1
        )
        h = self.enter(widened(latent, self.enter.in_features)) + self.position
        if self.prefix_embedding is not None and prefix_mask is not None:
            h = h + prefix_mask[..., None] * self.prefix_embedding
        for block in self.blocks:
            h = block(h, tokens, drive)
        return self.leave(self.norm(h))[..., : latent.shape[2]]


class _DitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Linear(width, 9 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, h: Tensor, tokens: Tensor, drive: Tensor) -> Tensor:
        shift_scale_gate = self.modulation(drive)[:, None].chunk(9, dim=2)
        x = self._modulated(0, h, shift_scale_gate)
        h = h + shift_scale_gate[2] * self.self_attention(x, x, x, need_weights=False)[0]
        x = self._modulated(1, h, shift_scale_gate)
        h = h + shift_scale_gate[5] * self.cross_attention(x, tokens, tokens, need_weights=False)[0]
        x = self._modulated(2, h, shift_scale_gate)
        return h + shift_scale_gate[8] * self.mlp(x)

    def _modulated(self, i: int, h: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
        return self.norms[i](h) * (1 + parts[3 * i + 1]) + parts[3 * i]
