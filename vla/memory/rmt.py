"""A recurrent transformer memory: some tokens that are rewritten at every decision.

Bulatov et al. 2022 (arXiv 2207.06881): memory tokens go through a transformer together with what is
seen, and what comes out of them is the next memory. Its state has a fixed size, but every write
changes all of it, as in a recurrent network: retention must be learned, through every write.

Otherwise than there: a segment is one decision; only memory tokens are queries, so that what is
stored does not depend on what was read; a learned identity is added to them at every write, and a
LayerNorm ends it; what is seen reads them by cross-attention and a gate.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the recurrent transformer memory."""

    memory_tokens: int = 8
    """Tokens that are remembered."""
    layers: int = 2
    """Transformer layers of a write."""
    heads: int = 4
    """Attention heads; they divide the token width."""

    def __post_init__(self) -> None:
        validate_min(self, memory_tokens=1, layers=1, heads=1)

    def build(self, tokens: int, width: int) -> "RecurrentTransformerMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: the heads do not divide the width.
        """
        if width % self.heads:
            raise ValueError(f"memory.heads must divide the token width {width}, got {self.heads}")
        return RecurrentTransformerMemory(self, tokens, width)


class Layer(nn.Module):
    """Attention of some tokens to a context, then a perceptron, each beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_context = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor, context: Tensor) -> Tensor:
        """Return f32 [b, m, d] for tokens f32 [b, m, d] and a context f32 [b, k, d]."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (
                self.query(self.norm(tokens)),
                *self.key_value(self.norm_context(context)).chunk(2, -1),
            )
        )
        weight = (q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])).softmax(-1)
        tokens = tokens + self.out((weight @ v).transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.norm_mlp(tokens))


class RecurrentTransformerMemory(StateMemory):
    """Recurrent transformer memory; it ignores the time between decisions."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        # What tells the tokens apart, also before anything is remembered.
        self.identity = nn.Parameter(0.02 * torch.randn(config.memory_tokens, width))
        self.layers = nn.ModuleList(Layer(width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.retrieve = Layer(width, config.heads)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(2 * width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of the remembered tokens."""
        return {"memory_tokens": (self.config.memory_tokens, self.width)}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Attend from tokens x f32 [b, n, d] to the remembered ones, and pool what is found."""
        with torch.autocast(x.device.type, enabled=False):
            remembered = state["memory_tokens"] + self.identity
            recalled = self.retrieve(x.float(), remembered)
            pooled = torch.cat([remembered.amax(1), recalled.mean(1)], 1)
            tokens = gate_mix(self.gate, x.float(), recalled)
            return Retrieved(tokens=tokens, vector=self.standardize(pooled))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Rewrite the memory with tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32."""
        with torch.autocast(x.device.type, enabled=False):
            before = state["memory_tokens"]
            tokens = before + self.identity
            for layer in self.layers:
                tokens = layer(tokens, torch.cat([tokens, x.float()], 1))
            after = self.norm(tokens)
            return {"memory_tokens": torch.where(mask[:, None, None] > 0, after, before)}
