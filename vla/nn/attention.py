"""Attention over memory slots, with age, occupancy and an always-present null entry."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

FREQUENCIES = 8
"""Of the waves that tell an age."""


def age_rates() -> Tensor:
    """Return the rates of `age_features`, f32 [f]."""
    return torch.exp(torch.linspace(math.log(0.25), math.log(2.0), FREQUENCIES))


def age_features(log_age: Tensor, rates: Tensor) -> Tensor:
    """Return waves of log(1 + age in control steps) f32 [...], as f32 [..., 2 f]: relative age
    extrapolates where absolute time does not.
    """
    phase = log_age[..., None] * rates
    return torch.cat([phase.sin(), phase.cos()], -1)


class SlotAttention(nn.Module):
    """Multi-head attention from present tokens to the tokens of all slots.

    Keys carry the slot's relative age, which extrapolates where absolute time does not. A slot of
    c decisions weighs like c entries (bias log c). The null entry keeps the softmax defined when
    nothing is stored.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.age = nn.Linear(2 * FREQUENCIES, width)
        self.null = nn.Parameter(torch.zeros(2, width))
        self.register_buffer("rates", age_rates(), persistent=False)

    def forward(self, x: Tensor, slots: Tensor, log_age: Tensor, count: Tensor) -> Tensor:
        """Return f32 [b, n, d].

        Args:
            x: f32 [b, n, d], present tokens.
            slots: f32 [b, l, n, d], slot tokens.
            log_age: f32 [b, l], log(1 + age in control steps).
            count: f32 [b, l], decisions per slot; 0 is empty.
        """
        batch, length, tokens, width = slots.shape
        content = self.norm(slots)
        age = self.age(age_features(log_age, self.rates))[:, :, None]
        null_key, null_value = self.null[0], self.null[1]
        keys = self.key(content + age).reshape(batch, length * tokens, width)
        values = self.value(content).reshape(batch, length * tokens, width)
        keys = torch.cat([null_key.expand(batch, 1, width), keys], 1)
        values = torch.cat([null_value.expand(batch, 1, width), values], 1)
        # each slot brings n entries: its occupancy is shared among them
        bias = torch.where(count > 0, count.clamp(min=1.0).log(), torch.full_like(count, -1e4))
        bias = bias[:, :, None].expand(batch, length, tokens).reshape(batch, 1, 1, length * tokens)
        bias = functional.pad(bias, (1, 0))
        q, k, v = (self._split(t) for t in (self.query(self.norm(x)), keys, values))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width / self.heads) + bias
        fetched = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, -1, width)
        return self.out(fetched)

    def _split(self, t: Tensor) -> Tensor:
        return t.unflatten(2, (self.heads, -1)).transpose(1, 2)
