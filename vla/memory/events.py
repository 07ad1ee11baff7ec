"""Slots of events: decisions that look alike share a slot, so that a long wait takes a single one.

A decision joins the newest slot if it looks like it, and takes a new one otherwise: run-length
coding. What is stored then does not depend on how long nothing changed. When all slots are taken,
the most similar neighbours merge, as in `bank`.

A slot is told apart by how long it lasted, and by how many slots and events came before and after
it. Each number is cut off, so that more than in training look like many in training. An event is
what differs from the first slot of the episode. A wait looks like that slot, so it adds nothing to
a sum of events, however long it is and however many distractors break it into pieces.

Reading has four channels: attention and a maximum over slots, as in `bank`, and two sums over
slots, of events and of their durations, because neither of the former counts or tells time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.bank_ops import Slots
from vla.nn.context import Retrieved
from vla.nn.norms import Standardize
from vla.nn.slot_memory import SlotMemory, check_sizes

LEVELS = 8
"""Numbers of slots or events before or after a slot that are told apart; more are like so many."""
KINDS = 16
"""Kinds of events that are counted before and after each slot."""


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
        self.duration = nn.Linear(config.max_duration_decisions, width)
        # Without bias: what has not changed adds nothing to a sum.
        self.kinds = nn.Linear(width, 2 * KINDS, bias=False)
        self.total = nn.Linear(width, 2 * width, bias=False)
        self.standardize_total = Standardize(2 * width)
        self.order = nn.Linear(2 * (1 + KINDS) * LEVELS, width)
        # What resembles the present is found from the start. Learned from nothing, a match between
        # two sentences with one name takes many more episodes.
        self.attention.key.load_state_dict(self.attention.query.state_dict())
        nn.init.ones_(self.attended_share)

    def pool(self, attended: Tensor) -> Tensor:
        """Return what the last token attended to: the one that holds the instruction."""
        return attended[:, -1]

    def retrieve(self, slots: Slots, x: Tensor, now: Tensor) -> Retrieved:
        """See `SlotMemory.retrieve`."""
        filled = (slots.count > 0).float()[:, :, None]
        looks = self.attention.norm(slots.tokens)
        is_first = filled * (filled.cumsum(1) == 1)
        change = looks - (is_first[:, :, None] * looks).sum(1, keepdim=True)
        kinds, total = (filled * layer(change).relu().mean(2) for layer in (self.kinds, self.total))
        older, newer = kinds.chunk(2, 2)
        older, newer = torch.cat([filled, older], 2), torch.cat([filled, newer], 2)
        before = older.cumsum(1) - older
        after = newer.sum(1, keepdim=True) - newer.cumsum(1)
        order = thermometer(torch.cat([before, after], 2), LEVELS)
        longest = self.config.max_duration_decisions
        told = self.order(order) + self.duration(thermometer(slots.count[:, :, None], longest))
        content, present = looks + told[:, :, None], filled[:, :, 0]
        tokens, peak, attended = self.channels(
            x, content, self.peak(looks), torch.zeros_like(present), present
        )
        number, time = total.chunk(2, 2)
        lasted = slots.count[:, :, None].clamp(max=float(longest))
        sums = torch.cat([number.sum(1), (lasted * time).sum(1)], 1)
        number, time = self.standardize_total(sums).chunk(2, 1)
        return Retrieved(tokens=tokens, vector=torch.cat([peak, attended + number + time], 1))


def thermometer(numbers: Tensor, levels: int) -> Tensor:
    """Return the thermometer code of numbers f32 [b, l, k], f32 [b, l, k * levels]: exact up to
    `levels`, and the same for all that are larger.
    """
    begin = torch.arange(levels, device=numbers.device, dtype=numbers.dtype)
    return (numbers[..., None] - begin).clamp(0.0, 1.0).flatten(2)
