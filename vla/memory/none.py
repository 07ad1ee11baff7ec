"""No memory: the control. Same interface as the bank, nothing stored, nothing retrieved."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig
from vla.nn import bank_ops
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """The control has no settings."""

    def build(self, tokens: int, width: int) -> "NoMemory":
        """Return a memory that forgets; its vector is as wide as the bank's, so networks match."""
        return NoMemory(tokens, width)


class NoMemory(nn.Module):
    """Hands the present tokens through and a zero vector; the state is one slot, always empty."""

    remembers = False
    """A decision stands alone."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.width = tokens, width

    @property
    def vector_size(self) -> int:
        """Width of `Retrieved.vector`."""
        return 2 * self.width

    def initial(self, batch: int, device: torch.device) -> Slots:
        """Return the one empty slot of `batch` rows."""
        return bank_ops.empty(batch, 1, self.tokens, self.width, device)

    def read(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """Return x f32 [b, n, d] itself and zeros."""
        return Retrieved(tokens=x, vector=x.new_zeros(len(x), self.vector_size))

    def write(self, slots: Slots, x: Tensor, now: Tensor, mask: Tensor) -> Slots:
        """Return the memory unchanged."""
        return slots

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """Return the present tokens of the chosen decisions and zeros."""
        return self.read(self.initial(len(row), x.device), x[row, decision], now[row, decision])
