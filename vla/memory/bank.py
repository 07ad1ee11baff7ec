"""The slot memory: reads all slots at each decision and merges the most similar ones.

Reset, read, gate, write, in that order, with all state passed in and out. Reading has two
channels: attention, and a maximum over slots of a learned projection, because a cue seen once
vanishes in an average and survives a maximum. Both are standardised before they modulate vision:
pooled features differ so little between cues that their gradient would otherwise vanish.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vla.contracts.config import PluginConfig
from vla.nn import bank_ops
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved
from vla.nn.slot_memory import SlotMemory, check_sizes, newer_steps


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the slot memory."""

    slots: int = 16
    """Number of slots."""
    recent: int = 4
    """Newest entries, which `ward` merges only if no older ones can be."""
    eviction: Literal["ward", "fifo", "sink", "even"] = "ward"
    """Merge the most similar neighbours (ward), or drop the oldest (fifo: a stack of the last
    decisions), the oldest but the first four (sink: attention sinks) or what leaves the others most
    evenly spread (even: frame sampling)."""
    heads: int = 4
    """Attention heads of the read."""
    time: Literal["age", "order"] = "age"
    """What tells slots apart in time: their age and how many decisions they hold, or their order
    alone, which at delays longer than in training looks as it did there."""

    @property
    def window_decisions(self) -> int | None:
        """Decisions after which it holds nothing of one; None if there is no such bound."""
        return self.slots if self.eviction == "fifo" else None

    def build(self, tokens: int, width: int) -> "Bank":
        """Return a bank for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: too few slots for the protected ones, or a width the heads do not divide.
        """
        recent = self.recent if self.eviction == "ward" else None
        check_sizes(self.slots, recent, self.heads, width)
        if self.eviction == "sink" and self.slots <= bank_ops.SINKS:
            raise ValueError(
                f"memory.slots must be above {bank_ops.SINKS}, the entries that sink keeps, got "
                f"{self.slots}"
            )
        return Bank(self, tokens, width)


class Bank(SlotMemory):
    """Slot memory; its state holds `bank_ops.Slots`."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(
            tokens, width, slots=config.slots, heads=config.heads, recent=config.recent,
            eviction=config.eviction,
        )  # fmt: skip
        self.config = config

    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """See `SlotMemory.retrieve`."""
        age, count = now[:, None] - slots.time, slots.count
        if self.config.time == "order":
            count = (count > 0).float()
            age = newer_steps(count)
        values = self.peak(self.attention.norm(slots.tokens))
        tokens, peak, mean = self.channels(x, slots.tokens, values, age, count)
        return Retrieved(tokens=tokens, vector=torch.cat([peak, mean], 1))
