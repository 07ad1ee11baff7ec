"""The slot memory: reads all slots at each decision and merges the most similar ones.

Reset, read, gate, write, in that order, with all state passed in and out. Reading has two
channels: attention, and a maximum over slots of a learned projection, because a cue seen once
vanishes in an average and survives a maximum. Both are standardised before they modulate vision:
pooled features differ so little between cues that their gradient would otherwise vanish.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig
from vla.nn import bank_ops
from vla.nn.attention import SlotAttention
from vla.nn.bank_ops import Mixing, Slots
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize

DECISION_STEPS = 8.0
"""Control steps that a slot counts for in `order`."""


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
        self.check_sizes(width)
        return Bank(self, tokens, width)

    def check_sizes(self, width: int) -> None:
        """Raise ValueError as `build` does."""
        if self.eviction == "ward" and self.slots < self.recent + 3:
            raise ValueError(
                f"memory.slots must be at least recent + 3 = {self.recent + 3}, got {self.slots}"
            )
        if self.eviction == "sink" and self.slots <= bank_ops.SINKS:
            raise ValueError(
                f"memory.slots must be above {bank_ops.SINKS}, the entries that sink keeps, got "
                f"{self.slots}"
            )
        if width % self.heads:
            raise ValueError(f"memory.heads must divide the token width {width}, got {self.heads}")


class Bank(StateMemory):
    """Slot memory; its state holds `bank_ops.Slots`."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.attention = SlotAttention(width, config.heads)
        self.peak = nn.Linear(width, width)
        self.peak_empty = nn.Parameter(torch.zeros(width))
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(2 * width)
        # The average of all slots is noise at first: training increases its share.
        self.attended_share = nn.Parameter(torch.zeros(width))

    def merging(self) -> dict[str, Any]:
        """Return what decides which slots merge: arguments of `bank_ops.write`."""
        return {"recent": self.config.recent, "eviction": self.config.eviction}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the slots' contents, mean times and counts of decisions."""
        slots = self.config.slots
        return {
            "slot_tokens": (slots, self.tokens, self.width), "slot_time": (slots,),
            "slot_count": (slots,),
        }  # fmt: skip

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        return self.retrieve(_slots(state), x, now)

    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve from slots for tokens x f32 [b, n, d] at time now f32 [b]."""
        age, count = now[:, None] - slots.time, slots.count
        if self.config.time == "order":
            count = (count > 0).float()
            # As if every slot were one decision: how many newer ones there are.
            age = DECISION_STEPS * (count.sum(1, keepdim=True) - count.cumsum(1))
        attended = self.attention(x, slots.tokens, torch.log1p(age.clamp(min=0.0)), count)
        values = self.peak(self.attention.norm(slots.tokens))
        filled = (slots.count > 0)[:, :, None, None]
        peak = torch.where(filled, values, torch.full_like(values, -1e4)).amax((1, 2))
        vector = torch.cat([torch.maximum(peak, self.peak_empty), attended.mean(1)], 1)
        tokens = gate_mix(self.gate, x, attended)
        peak, mean = self.standardize(vector).chunk(2, 1)
        return Retrieved(tokens=tokens, vector=torch.cat([peak, self.attended_share * mean], 1))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Store tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32, whatever the dtype."""
        with torch.autocast(x.device.type, enabled=False):
            slots, _ = bank_ops.write(
                _slots(state), x.float(), now.float(), mask.float(), **self.merging()
            )
        return {"slot_tokens": slots.tokens, "slot_time": slots.time, "slot_count": slots.count}

    def mixing(self, x: Tensor, now: Tensor, mask: Tensor) -> Mixing:
        """Return what each slot holds at each decision of whole episodes; see `bank_ops.mixing`."""
        return bank_ops.mixing(x, now, mask, slots=self.config.slots, **self.merging())

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; slots are a matrix times the written tokens."""
        with torch.autocast(x.device.type, enabled=False):
            written = x.float()
            plan = self.mixing(written, now, mask)
            share = plan.share[row, decision]
            tokens = torch.bmm(share, written.flatten(2)[row]).unflatten(2, x.shape[2:])
        slots = Slots(tokens, plan.time[row, decision], plan.count[row, decision])
        return self.retrieve(slots, x[row, decision], now[row, decision])


def _slots(state: dict[str, Tensor]) -> Slots:
    return Slots(state["slot_tokens"], state["slot_time"], state["slot_count"])
