"""A recurrent memory: one gated recurrent unit per token, with shared weights.

Cho et al. 2014 (arXiv 1406.1078). Its state has a fixed size for any episode length, but every
write changes all of it: retention must be learned. Each token has a hidden state, because a cue
in one token vanishes in an average.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the recurrent memory."""

    hidden_size: int = 128
    """Size of the hidden state of each token."""

    def __post_init__(self) -> None:
        validate_min(self, hidden_size=1)

    def build(self, tokens: int, width: int) -> "GRUMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return GRUMemory(self, tokens, width)


class GRUMemory(StateMemory):
    """GRU memory; it ignores the time between decisions."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.cell = nn.GRUCell(width, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, width)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(2 * width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of the hidden states, in (-1, 1)."""
        return {"hidden": (self.tokens, self.config.hidden_size)}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Mix the projected hidden states into tokens x f32 [b, n, d], and pool it over tokens."""
        recalled = self.output(state["hidden"])
        pooled = torch.cat([recalled.amax(1), recalled.mean(1)], 1)
        return Retrieved(tokens=gate_mix(self.gate, x, recalled), vector=self.standardize(pooled))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Advance the hidden states by tokens x f32 [b, n, d] where mask f32 [b] is 1."""
        with torch.autocast(x.device.type, enabled=False):
            hidden = state["hidden"]
            flat = self.cell(self.norm(x.float()).flatten(0, 1), hidden.flatten(0, 1))
            return {"hidden": torch.where(mask[:, None, None] > 0, flat.view_as(hidden), hidden)}
