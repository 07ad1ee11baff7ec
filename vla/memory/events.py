"""Slots of events: decisions that look alike share a slot, so that a long wait takes a single one.

A decision joins the newest slot if it looks like it, and takes a new one otherwise: run-length
coding. What is stored then does not depend on how long nothing changed, and slots are told apart by
their order and by a duration that is cut off at `max_duration_decisions`. So delays beyond those of
training look like those. When all slots are taken, the most similar neighbours merge, as in `bank`.

Reading has three channels: attention and a maximum over slots, as in `bank`, and a sum over
decisions, because neither of the two counts.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.memory import bank
from vla.memory.bank import DECISION_STEPS
from vla.nn.attention import FREQUENCIES, age_features
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved
from vla.nn.memory import gate_mix
from vla.nn.norms import Standardize


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the memory of events."""

    slots: int = 32
    """Number of slots."""
    recent: int = 4
    """Newest events that are merged with what looks different only if no older ones can be."""
    merge_threshold: float = 0.001
    """Neighbours that differ by less than this share of their mean square are one event. Images
    of a simulator are equal while nothing changes; those of a camera are not."""
    max_duration_decisions: int = 16
    """Longer events look as long as this."""
    heads: int = 4
    """Attention heads of the read."""

    def __post_init__(self) -> None:
        validate_min(self, merge_threshold=0, max_duration_decisions=1)

    def build(self, tokens: int, width: int) -> "Events":
        """Return a memory for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: as `bank.Config.build`.
        """
        like = bank.Config(slots=self.slots, recent=self.recent, heads=self.heads, time="order")
        like.check_sizes(width)
        return Events(self, like, tokens, width)


class Events(bank.Bank):
    """Memory of events; its state holds `bank_ops.Slots`."""

    def __init__(self, config: Config, like: bank.Config, tokens: int, width: int) -> None:
        super().__init__(like, tokens, width)
        self.events = config
        self.place = nn.Linear(4 * FREQUENCIES, width)
        self.total = nn.Linear(width, width)
        self.standardize_total = Standardize(width)

    def merging(self) -> dict[str, Any]:
        """See `bank.Bank.merging`."""
        return {**super().merging(), "merge_threshold": self.events.merge_threshold}

    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """See `bank.Bank.retrieve`."""
        filled = (slots.count > 0).float()
        newer = torch.log1p(DECISION_STEPS * (filled.sum(1, keepdim=True) - filled.cumsum(1)))
        duration = slots.count.clamp(max=float(self.events.max_duration_decisions))
        rates = self.attention.rates
        told = (newer, torch.log1p(DECISION_STEPS * duration))
        place = self.place(torch.cat([age_features(part, rates) for part in told], -1))
        looks = self.attention.norm(slots.tokens)
        content = looks + place[:, :, None]
        attended = self.attention(x, content, newer, filled)
        values = self.peak(content)
        empty = torch.full_like(values, -1e4)
        peak = torch.where(filled[:, :, None, None] > 0, values, empty).amax((1, 2))
        vector = torch.cat([torch.maximum(peak, self.peak_empty), attended.mean(1)], 1)
        total = (duration[:, :, None] * self.total(looks).relu().sum(2)).sum(1)
        peak, mean = self.standardize(vector).chunk(2, 1)
        summed = self.attended_share * mean + self.standardize_total(total)
        return Retrieved(
            tokens=gate_mix(self.gate, x, attended), vector=torch.cat([peak, summed], 1)
        )
