"""The perceptual memory bank of MemoryVLA, as a baseline (Shi et al. 2025, arXiv 2508.19236).

As in their code: raw tokens are stored at every decision, without a gradient; when the bank is
full, the adjacent pair with the highest mean cosine similarity becomes its plain average, which
keeps the earlier time; keys carry a sinusoid of absolute time; two layers of cross-attention
retrieve, and a gate that starts at one half mixes. Otherwise than there: norms come before
attention and perceptron, stored tokens are normalised when read, one bank holds all tokens of a
decision, and what is retrieved is also pooled into a vector, since a head takes one from every
memory.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla.contracts.config import PluginConfig, validate_min
from vla.nn import bank_ops
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory
from vla.nn.norms import Standardize

HOLE_COST = -2.0
"""Of a pair with an empty member: below that of any cosine, so holes are consumed first."""
MASKED = -1e4
"""Added to the score of an empty slot."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of MemoryVLA's bank."""

    slots: int = 16
    """Number of slots."""
    layers: int = 2
    """Layers of cross-attention."""
    heads: int = 1
    """Attention heads; they divide the token width."""

    def __post_init__(self) -> None:
        validate_min(self, slots=2, layers=1, heads=1)

    def build(self, tokens: int, width: int) -> "MemoryVLABank":
        """Return a bank for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: the heads do not divide the width.
        """
        if width % self.heads:
            raise ValueError(f"memory.heads must divide the token width {width}, got {self.heads}")
        return MemoryVLABank(self, tokens, width)


class Retrieval(nn.Module):
    """Cross-attention to the slots, then a perceptron, each beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Return f32 [b, n, d] for queries x; keys, values f32 [b, l n, d]; bias f32 [b, l n]."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(self.norm(x)), self.key(keys), self.value(values))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1]) + bias[:, None, None]
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class MemoryVLABank(StateMemory):
    """MemoryVLA's bank; slots are ordered, the oldest first."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Retrieval(width, config.heads) for _ in range(config.layers))
        self.gate = nn.Linear(2 * width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)  # starts at one half
        self.standardize = Standardize(2 * width)
        rates = torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
        self.register_buffer("rates", rates, persistent=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the slots' tokens, times, and 1 where there is one."""
        slots = self.config.slots
        return {
            "bank_tokens": (slots, self.tokens, self.width), "bank_time": (slots,),
            "bank_mask": (slots,),
        }  # fmt: skip

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        filled = state["bank_mask"]
        stored = self.norm(state["bank_tokens"])
        phase = state["bank_time"][:, :, None] * self.rates
        position = torch.stack([phase.sin(), phase.cos()], -1).flatten(2)[:, :, None, : self.width]
        bias = (MASKED * (1 - filled))[:, :, None].expand(stored.shape[:3]).flatten(1)
        keys, values = (stored + position).flatten(1, 2), stored.flatten(1, 2)
        retrieved = x
        for layer in self.layers:
            retrieved = layer(retrieved, keys, values, bias)
        # The first decision has nothing to retrieve.
        retrieved = torch.where(filled.amax(1)[:, None, None] > 0, retrieved, x)
        share = torch.sigmoid(self.gate(torch.cat([x, retrieved], 2)))
        pooled = torch.cat([retrieved.amax(1), retrieved.mean(1)], 1)
        tokens = (1 - share) * x + share * retrieved
        return Retrieved(tokens=tokens, vector=self.standardize(pooled))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Store tokens x f32 [b, n, d] where mask f32 [b] is 1, without a gradient."""
        with torch.autocast(x.device.type, enabled=False):
            written = x.detach().float() * mask[:, None, None]
            tokens = torch.cat([state["bank_tokens"], written[:, None]], 1)
            time = torch.cat([state["bank_time"], (now.float() * mask)[:, None]], 1)
            filled = torch.cat([state["bank_mask"], mask.float()[:, None]], 1)
            left, right = filled[:, :-1], filled[:, 1:]
            alike = functional.cosine_similarity(tokens[:, :-1], tokens[:, 1:], dim=-1).mean(-1)
            index = torch.arange(alike.shape[1], device=x.device)
            cost = torch.where(left * right > 0, -alike, torch.full_like(alike, HOLE_COST))
            pair = (cost + bank_ops.TIE_COST * index).argmin(1)
            both = (left + right).clamp(min=1.0)
            return {
                "bank_tokens": bank_ops.merge(tokens, pair, left / both, right / both),
                "bank_time": bank_ops.merge(time, pair, left, right * (1 - left)),
                "bank_mask": bank_ops.merge(filled, pair, left, right * (1 - left)),
            }
