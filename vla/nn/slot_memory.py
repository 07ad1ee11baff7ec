"""Base of memories with slots that merge: their state, writing, and reading whole episodes."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from vla.nn import bank_ops
from vla.nn.attention import SlotAttention
from vla.nn.bank_ops import Mixing, Slots
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize

DECISION_STEPS = 8.0
"""Control steps that a slot counts for where slots are told apart by their order."""


def check_sizes(slots: int, recent: int | None, heads: int, width: int) -> None:
    """Raise ValueError if the heads do not divide the width, or there are too few slots to merge
    with `recent` newest ones protected; None if none merge.
    """
    if recent is not None and slots < recent + 3:
        raise ValueError(f"memory.slots must be at least recent + 3 = {recent + 3}, got {slots}")
    if width % heads:
        raise ValueError(f"memory.heads must divide the token width {width}, got {heads}")


def newer_steps(filled: Tensor) -> Tensor:
    """Return how many newer slots there are, in control steps as if each were one decision, f32
    [b, l], for slots that are filled (1) or not (0), f32 [b, l].
    """
    return DECISION_STEPS * (filled.sum(1, keepdim=True) - filled.cumsum(1))


class SlotMemory(StateMemory):
    """Slots, oldest first, as `bank_ops.Slots`; a subclass says how they are read.

    Args:
        tokens: n, tokens of a decision.
        width: d, numbers of a token.
        slots: l, number of slots.
        heads: Attention heads of the read.
        merging: What decides which slots merge: further arguments of `bank_ops.write`.
    """

    def __init__(self, tokens: int, width: int, *, slots: int, heads: int, **merging: Any) -> None:
        super().__init__(tokens, width)
        self.slots, self.merging = slots, merging
        self.attention = SlotAttention(width, heads)
        self.peak = nn.Linear(width, width)
        self.peak_empty = nn.Parameter(torch.zeros(width))
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(2 * width)
        # The average of all slots is noise at first: training increases its share.
        self.attended_share = nn.Parameter(torch.zeros(width))

    @abstractmethod
    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve from slots for tokens x f32 [b, n, d] at time now f32 [b]."""

    def pool(self, attended: Tensor) -> Tensor:
        """Return what each token attended to, f32 [b, n, d], as one vector f32 [b, d]."""
        return attended.mean(1)

    def channels(
        self, x: Tensor, content: Tensor, values: Tensor, age_steps: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read slots by attention and by a maximum, both standardised.

        Args:
            x: f32 [b, n, d], present tokens.
            content: f32 [b, l, n, d], what attention reads.
            values: f32 [b, l, n, d], of what the maximum is taken.
            age_steps: f32 [b, l], ages in control steps.
            count: f32 [b, l], how many entries each weighs like; 0 is empty.

        Returns:
            Gated tokens f32 [b, n, d], the maximum and what `pool` returns, f32 [b, d].
        """
        attended = self.attention(x, content, torch.log1p(age_steps.clamp(min=0.0)), count)
        filled = (count > 0)[:, :, None, None]
        peak = torch.where(filled, values, torch.full_like(values, -1e4)).amax((1, 2))
        vector = torch.cat([torch.maximum(peak, self.peak_empty), self.pool(attended)], 1)
        peak, pooled = self.standardize(vector).chunk(2, 1)
        return gate_mix(self.gate, x, attended), peak, self.attended_share * pooled

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the slots' contents, mean times and counts of decisions."""
        return {
            "slot_tokens": (self.slots, self.tokens, self.width), "slot_time": (self.slots,),
            "slot_count": (self.slots,),
        }  # fmt: skip

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        return self.retrieve(_slots(state), x, now)

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Store tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32, whatever the dtype."""
        with torch.autocast(x.device.type, enabled=False):
            slots, _ = bank_ops.write(
                _slots(state), x.float(), now.float(), mask.float(), **self.merging
            )
        return {"slot_tokens": slots.tokens, "slot_time": slots.time, "slot_count": slots.count}

    def mixing(self, x: Tensor, now: Tensor, mask: Tensor) -> Mixing:
        """Return what each slot holds at each decision of whole episodes; see `bank_ops.mixing`."""
        return bank_ops.mixing(x, now, mask, slots=self.slots, **self.merging)

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; slots are a matrix times the written tokens."""
        with torch.autocast(x.device.type, enabled=False):
            written = x.float()
            plan = self.mixing(written, now, mask)
            # Holes come first; those that are never filled only take time.
            filled = min(self.slots, x.shape[1])
            share, time, count = (
                part[row, decision, -filled:] for part in (plan.share, plan.time, plan.count)
            )
            tokens = torch.bmm(share, written.flatten(2)[row]).unflatten(2, x.shape[2:])
        slots = Slots(tokens, time, count)
        return self.retrieve(slots, x[row, decision], now[row, decision])


def _slots(state: dict[str, Tensor]) -> Slots:
    return Slots(state["slot_tokens"], state["slot_time"], state["slot_count"])
