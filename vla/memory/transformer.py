"""A full-history memory: a causal transformer over all decisions, with cached keys and values.

Vaswani et al. 2017 (arXiv 1706.03762), decoder only. A decision is one vector. Keys are cached
without a position; what a query adds for the age of a key, log(1 + control steps), extrapolates
where absolute time does not. State and latency grow with `max_decisions`. Older entries are
dropped, but later ones have seen them, once for each layer: the strong baseline where the context
covers the delay.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.attention import FREQUENCIES, age_features, age_rates
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize

MASKED = -1e4
"""Added to the score of an entry that may not be seen."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the full-history memory."""

    max_decisions: int = 160
    """Decisions that it keeps: 1,280 control steps at 8 a decision."""
    layers: int = 2
    """Transformer layers."""
    hidden_size: int = 128
    """Width of the transformer."""
    heads: int = 4
    """Attention heads; they divide the width."""

    def __post_init__(self) -> None:
        validate_min(self, max_decisions=1, layers=1, hidden_size=1, heads=1)
        if self.hidden_size % self.heads:
            raise ValueError(
                f"memory.heads must divide hidden_size {self.hidden_size}, got {self.heads}"
            )

    @property
    def window_decisions(self) -> int:
        """Decisions after which it holds nothing of one: an entry of a layer has seen those that
        the layer below kept.
        """
        return self.layers * self.max_decisions

    def build(self, tokens: int, width: int) -> "TransformerMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return TransformerMemory(self, tokens, width)


class Entries(NamedTuple):
    """What the decisions of some rows attend to."""

    keys: Tensor
    """f32 [b, k, w]."""
    values: Tensor
    """f32 [b, k, w]."""
    log_age: Tensor
    """f32 [b, q, k], log(1 + age in control steps)."""
    bias: Tensor
    """f32 [b, q, k]: 0, or `MASKED` where a decision may not see an entry."""


class Layer(nn.Module):
    """Attention to entries, then a perceptron, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.age = nn.Linear(2 * FREQUENCIES, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("rates", age_rates(), persistent=False)

    def cached(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return key and value f32 [b, t, w] of decisions f32 [b, t, w]."""
        key, value = self.key_value(self.norm(hidden)).chunk(2, -1)
        return key, value

    def forward(self, hidden: Tensor, entries: Entries) -> Tensor:
        """Return f32 [b, q, w] for decisions f32 [b, q, w]."""
        query = self._split(self.query(self.norm(hidden)))
        keys, values = self._split(entries.keys), self._split(entries.values)
        features = age_features(entries.log_age, self.rates)  # [b, q, k, 2f]
        weight = self.age.weight.unflatten(0, (self.heads, -1))  # [h, w / h, 2f]
        by_age = query @ weight  # [b, h, q, 2f]
        scores = query @ keys.transpose(-1, -2)
        scores = scores + (by_age.transpose(1, 2) @ features.transpose(-1, -2)).transpose(1, 2)
        scores = scores / math.sqrt(keys.shape[-1]) + entries.bias[:, None]
        fetched = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        hidden = hidden + self.out(fetched)
        return hidden + self.mlp(self.norm_mlp(hidden))

    def _split(self, x: Tensor) -> Tensor:
        """Return [b, t, w] as [b, h, t, w / h]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class TransformerMemory(StateMemory):
    """Full-history memory; new entries are written at the end of the cache."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.input = nn.Linear(tokens * width, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config.hidden_size, config.heads) for _ in range(config.layers)
        )
        self.recalled = nn.Linear(config.hidden_size, width)
        self.output = nn.Linear(config.hidden_size, self.vector_size)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(self.vector_size)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of cached keys and values, their times, and 1 where there is one."""
        kept = self.config.max_decisions
        cache = (self.config.layers, kept, self.config.hidden_size)
        return {
            "cached_keys": cache, "cached_values": cache, "cached_time": (kept,),
            "cached_mask": (kept,),
        }  # fmt: skip

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        with torch.autocast(x.device.type, enabled=False):
            hidden, _ = self._step(state, x.float(), now.float())
            return self._retrieved(x.float(), hidden[:, 0])

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Append tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32, whatever the dtype."""
        with torch.autocast(x.device.type, enabled=False):
            _, new = self._step(state, x.float(), now.float())
            keys, values = (torch.stack(parts, 1) for parts in zip(*new, strict=True))
            appended = {
                "cached_keys": torch.cat([state["cached_keys"][:, :, 1:], keys], 2),
                "cached_values": torch.cat([state["cached_values"][:, :, 1:], values], 2),
                "cached_time": torch.cat([state["cached_time"][:, 1:], now.float()[:, None]], 1),
                "cached_mask": torch.cat(
                    [state["cached_mask"][:, 1:], torch.ones_like(now.float())[:, None]], 1
                ),
            }
            return {
                name: torch.where(mask.view(-1, *(1,) * (part.dim() - 1)) > 0, part, state[name])
                for name, part in appended.items()
            }

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; all decisions of an episode go through it at once."""
        with torch.autocast(x.device.type, enabled=False):
            x, now = x.float(), now.float()
            itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
            written = mask.cumsum(1) - mask  # before each decision
            newer = written[:, :, None] - written[:, None, :]
            past = torch.ones_like(itself).tril(-1) & (mask[:, None, :] > 0)
            seen = itself | (past & (newer <= self.config.max_decisions))
            bias = torch.where(seen, 0.0, MASKED)
            log_age = torch.log1p((now[:, :, None] - now[:, None, :]).clamp(min=0.0))
            hidden = self.input(self.norm(x).flatten(2))
            for layer in self.layers:
                keys, values = layer.cached(hidden)
                hidden = layer(hidden, Entries(keys, values, log_age, bias))
            return self._retrieved(x[row, decision], hidden[row, decision])

    def _step(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the hidden vector f32 [b, 1, w] of a decision, and its key and value by layer."""
        age = torch.cat([now[:, None] - state["cached_time"], torch.zeros_like(now)[:, None]], 1)
        log_age = torch.log1p(age.clamp(min=0.0))[:, None]
        known = torch.cat([state["cached_mask"], torch.ones_like(now)[:, None]], 1)
        bias = (MASKED * (1 - known))[:, None]
        hidden = self.input(self.norm(x).flatten(1))[:, None]
        new = []
        for number, layer in enumerate(self.layers):
            key, value = layer.cached(hidden)
            new.append((key, value))
            keys = torch.cat([state["cached_keys"][:, number], key], 1)
            values = torch.cat([state["cached_values"][:, number], value], 1)
            hidden = layer(hidden, Entries(keys, values, log_age, bias))
        return hidden, new

    def _retrieved(self, x: Tensor, hidden: Tensor) -> Retrieved:
        recalled = self.recalled(hidden)[:, None].expand_as(x)
        vector = self.standardize(self.output(hidden))
        return Retrieved(tokens=gate_mix(self.gate, x, recalled), vector=vector)
