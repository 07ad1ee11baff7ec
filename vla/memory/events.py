"""Slots of events: decisions that look alike share a slot, so that a long wait takes a single one.

A decision joins the newest slot if it looks like it, and takes a new one otherwise: run-length
coding. What is stored then does not depend on how long nothing changed. Slots are told apart by
their order and by a duration; from `max_duration_decisions` on an event is just long. In training
most reads call shorter events long, too, so that many long ones in an episode are nothing new, and
delays beyond those of training look like those. When all slots are taken, the most similar
neighbours merge, as in `bank`.

Reading has three channels: attention and a maximum over slots, as in `bank`, and a sum over slots,
because neither of the two counts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.attention import FREQUENCIES, age_features
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved
from vla.nn.norms import Standardize
from vla.nn.slot_memory import DECISION_STEPS, SlotMemory, check_sizes, newer_steps

GOLDEN_RATIO = (1 + 5**0.5) / 2


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the memory of events."""

    slots: int = 64
    """Number of slots."""
    recent: int = 4
    """Newest events that are merged with what looks different only if no older ones can be."""
    merge_threshold: float = 0.001
    """Neighbours that differ by less than this share of their mean square are one event. Images
    of a simulator are equal while nothing changes; those of a camera are not."""
    max_duration_decisions: int = 16
    """Decisions from which on an event is just long."""
    heads: int = 4
    """Attention heads of the read."""

    def __post_init__(self) -> None:
        validate_min(self, merge_threshold=0, max_duration_decisions=1)

    def build(self, tokens: int, width: int) -> "Events":
        """Return a memory for decisions of `tokens` tokens of `width` numbers.

        Raises:
            ValueError: too few slots to merge, or the heads do not divide the width.
        """
        check_sizes(self.slots, self.recent, self.heads, width)
        return Events(self, tokens, width)


class Events(SlotMemory):
    """Memory of events; its state holds `bank_ops.Slots`."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(
            tokens, width, slots=config.slots, heads=config.heads, recent=config.recent,
            eviction="ward", merge_threshold=config.merge_threshold,
        )  # fmt: skip
        self.config = config
        self.place = nn.Linear(4 * FREQUENCIES, width)
        self.total = nn.Linear(width, width)
        self.standardize_total = Standardize(width)

    def _bounds(self, reads: int, device: torch.device) -> Tensor:
        """Return from how many decisions on an event is long in each read of a batch, f32 [b, 1].

        Log-uniform from 1 on; multiples of the golden ratio are spread evenly, and need no seed.
        """
        share = torch.arange(reads, device=device)[:, None] * GOLDEN_RATIO % 1.0
        return (1.0 + self.config.max_duration_decisions) ** share

    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """See `SlotMemory.retrieve`."""
        filled = (slots.count > 0).float()
        newer = newer_steps(filled)
        longest = float(self.config.max_duration_decisions)
        long = slots.count >= (self._bounds(len(x), x.device) if self.training else longest)
        duration = slots.count.masked_fill(long, longest)
        told = [
            age_features(torch.log1p(steps), self.attention.rates)
            for steps in (newer, DECISION_STEPS * duration)
        ]
        looks = self.attention.norm(slots.tokens)
        content = looks + self.place(torch.cat(told, -1))[:, :, None]
        tokens, peak, mean = self.channels(x, content, self.peak(content), newer, filled)
        # Not weighted by duration: what little a long wait adds would grow with it.
        total = (filled[:, :, None] * self.total(looks).relu().mean(2)).sum(1)
        summed = mean + self.standardize_total(total)
        return Retrieved(tokens=tokens, vector=torch.cat([peak, summed], 1))
