"""The slot memory: reads everything remembered at each decision and merges what is most alike.

Reset, read, gate, write, in that order, with all state passed in and out. Reading has two
channels: attention, and a maximum over slots of a learned projection, because a cue that was seen
once is lost in an average and survives a maximum. Both are standardised before vision sees them:
pooled features differ so little between cues that their gradient would otherwise vanish.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig
from vla.nn import bank_ops
from vla.nn.attention import SlotAttention
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved
from vla.nn.norms import Standardize


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the slot memory."""

    slots: int = 16
    """Number of slots."""
    recent: int = 4
    """Newest entries that are not merged while older ones can be."""
    eviction: Literal["ward", "fifo"] = "ward"
    """Merge the most similar neighbours (ward), or drop the oldest (fifo, an ablation)."""
    heads: int = 4
    """Attention heads of the read."""

    def build(self, tokens: int, width: int) -> "Bank":
        """Return a bank for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: too few slots for the protected ones, or a width the heads do not divide.
        """
        if self.slots < self.recent + 3:
            raise ValueError(
                f"memory.slots must be at least recent + 3 = {self.recent + 3}, got {self.slots}"
            )
        if width % self.heads:
            raise ValueError(f"memory.heads must divide the token width {width}, got {self.heads}")
        return Bank(self, tokens, width)


class Bank(nn.Module):
    """See the module's sentence; shapes are those of `PolicyState`."""

    remembers = True
    """Whether a decision depends on what was seen before it."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__()
        self.config, self.tokens, self.width = config, tokens, width
        self.attention = SlotAttention(width, config.heads)
        self.peak = nn.Linear(width, width)
        self.peak_empty = nn.Parameter(torch.zeros(width))
        self.gate = nn.Linear(2 * width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, 3.0)  # starts 95 % memoryless
        self.standardize = Standardize(2 * width)
        # An average of everything stored is noise at first: it joins as it proves of use.
        self.attended_share = nn.Parameter(torch.zeros(width))

    @property
    def vector_size(self) -> int:
        """Width of `Retrieved.vector`."""
        return 2 * self.width

    def initial(self, batch: int, device: torch.device) -> Slots:
        """Return the empty memory of `batch` rows."""
        return bank_ops.empty(batch, self.config.slots, self.tokens, self.width, device)

    def read(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        age = torch.log1p((now[:, None] - slots.time).clamp(min=0.0))
        attended = self.attention(x, slots.tokens, age, slots.count)
        values = self.peak(self.attention.norm(slots.tokens))
        filled = (slots.count > 0)[:, :, None, None]
        peak = torch.where(filled, values, torch.full_like(values, -1e4)).amax((1, 2))
        vector = torch.cat([torch.maximum(peak, self.peak_empty), attended.mean(1)], 1)
        share = torch.sigmoid(self.gate(torch.cat([x, attended], 2)))
        return Retrieved(
            tokens=share * x + (1 - share) * attended, vector=self._standardized(vector)
        )

    def _standardized(self, vector: Tensor) -> Tensor:
        peak, attended = self.standardize(vector).chunk(2, 1)
        return torch.cat([peak, self.attended_share * attended], 1)

    def write(self, slots: Slots, x: Tensor, now: Tensor, mask: Tensor) -> Slots:
        """Store tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32, whatever the dtype."""
        fifo = self.config.eviction == "fifo"
        with torch.autocast(x.device.type, enabled=False):
            return bank_ops.write(
                slots, x.float(), now.float(), mask.float(), recent=self.config.recent, fifo=fifo
            )[0]

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """Read at chosen decisions of whole episodes, with full gradient through every write.

        Gives what `read` after a step-by-step `write` of all earlier decisions would give.

        Args:
            x: f32 [b, t, n, d], tokens of every decision.
            now: f32 [b, t], control steps since the episode began.
            mask: f32 [b, t], 1 where the decision exists.
            row: i64 [m], episode of each query.
            decision: i64 [m], decision of each query within its episode.
        """
        with torch.autocast(x.device.type, enabled=False):
            written = x.float()
            plan = bank_ops.mixing(
                written, now, mask, slots=self.config.slots, recent=self.config.recent,
                fifo=self.config.eviction == "fifo",
            )  # fmt: skip
            share = plan.share[row, decision]
            tokens = torch.bmm(share, written.flatten(2)[row]).unflatten(2, x.shape[2:])
        slots = Slots(tokens, plan.time[row, decision], plan.count[row, decision])
        return self.read(slots, x[row, decision], now[row, decision])
