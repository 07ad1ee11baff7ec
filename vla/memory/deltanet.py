"""Fast weights that learn at test time: what is stored is a linear map from keys to values.

Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): S_t = a_t S_(t-1) + b_t (v_t - a_t S_(t-1) k_t)
k_t^T, read as S_t q. With unit keys and b_t in [0, 1] each write is a step of gradient descent on
|S k - v|^2, so this is also TTT-Linear (Sun et al. 2024, arXiv 2407.04620) without its norm, one
sample a step. Writing a key again replaces its value; a_t lets all fade.

Otherwise than there: a few learned queries pool the tokens of a decision, and each writes one pair
after the other; a decision reads before it writes; what is read is gated into the tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize

KEPT = 0.999
"""Share a_t of everything that a write keeps, at the start of training."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the fast weights."""

    heads: int = 4
    """Maps that are learned side by side."""
    head_size: int = 32
    """Numbers of a key and of a value."""
    writes: int = 4
    """Pairs that a decision writes."""

    def __post_init__(self) -> None:
        validate_min(self, heads=1, head_size=1, writes=1)

    def build(self, tokens: int, width: int) -> "DeltaNetMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return DeltaNetMemory(self, tokens, width)


class DeltaNetMemory(StateMemory):
    """Fast weights; they ignore the time between decisions."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        size = config.heads * config.head_size
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, config.writes)
        self.position = nn.Parameter(torch.zeros(tokens, config.writes))
        self.query, self.key = nn.Linear(width, size), nn.Linear(width, size)
        self.value, self.out = nn.Linear(width, size), nn.Linear(size, width)
        self.rates = nn.Linear(width, 2 * config.heads)
        nn.init.zeros_(self.rates.weight)
        bias = torch.tensor([0.0, math.log(KEPT / (1 - KEPT))])
        self.rates.bias.data = bias.repeat_interleave(config.heads)
        self.norm_read = nn.LayerNorm(size)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(self.vector_size)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of the fast weights, values by keys."""
        config = self.config
        return {"fast_weights": (config.heads, config.head_size, config.head_size)}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Map tokens x f32 [b, n, d] by the fast weights."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            query = functional.normalize(self._heads(self.query(self.norm(x))), dim=-1)
            found = query @ state["fast_weights"].transpose(-1, -2)
            recalled = self.out(self.norm_read(found.transpose(1, 2).flatten(2)))
            tokens = gate_mix(self.gate, x, recalled)
            vector = torch.cat([recalled.amax(1), recalled.mean(1)], 1)
            return Retrieved(tokens=tokens, vector=self.standardize(vector))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Learn the pairs of tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32."""
        with torch.autocast(x.device.type, enabled=False):
            x = self.norm(x.float())
            share = (self.pool(x) + self.position).softmax(1).transpose(1, 2)
            pooled = share @ x
            key = functional.normalize(self._heads(self.key(pooled)), dim=-1)
            value = self._heads(self.value(pooled))
            learn, keep = torch.sigmoid(self.rates(pooled)).transpose(1, 2).chunk(2, 1)
            before = weights = state["fast_weights"]
            for i in range(self.config.writes):
                weights = keep[:, :, i, None, None] * weights
                k, v = key[:, :, i, :, None], value[:, :, i, :, None]
                error = v - weights @ k
                weights = weights + learn[:, :, i, None, None] * error @ k.transpose(-1, -2)
            return {"fast_weights": torch.where(mask[:, None, None, None] > 0, weights, before)}

    def _heads(self, x: Tensor) -> Tensor:
        """Return [b, heads, n, head_size] of x [b, n, heads * head_size]."""
        return x.unflatten(2, (self.config.heads, self.config.head_size)).transpose(1, 2)
