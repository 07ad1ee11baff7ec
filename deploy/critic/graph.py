"""Torch to ONNX: what a scorer asks of a critic, as three graphs of fixed batch.

Which moments are compared, and what is made of the answers, stays outside: `reward_models.curves`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deploy import graph
from deploy.critic.artefact import COMPARE, EMBED, GIVEN, JUDGE
from deploy.graph import Traced
from reward_models.critic import Exportable, Shown

SEEN = ("images", "words", "memory", "fresh")
REFERENCE = ("shown", "shown_progress")
"""One reference episode for all rows; a progress of NaN in its first place says there is none."""
LONGEST = 4096
"""Most moments of it."""


@torch.no_grad()
def trace(critic: Exportable, pairs: int, batch: int) -> dict[str, Traced]:
    """Return the graphs of a critic in evaluation mode, with examples of `batch` rows.

    Args:
        critic: What to export.
        pairs: Earlier moments that one is compared with.
        batch: Rows.
    """
    shape = (batch, len(critic.cameras), *critic.image_hw, 3)
    seen = dict(zip(SEEN, (
        torch.zeros(shape, dtype=torch.uint8), torch.ones(batch, 4, dtype=torch.int64),
        torch.zeros_like(critic.remember(batch)), torch.ones(batch, dtype=torch.bool),
    ), strict=True))  # fmt: skip
    embedding, _ = critic.watch(*seen.values())
    now, first = {"embedding": embedding}, {"first": embedding.clone()}
    reference = dict(zip(REFERENCE, (embedding[:1].repeat(3, 1), torch.zeros(3)), strict=True))
    earlier = {"earlier": embedding[:, None].repeat(1, pairs, 1)}
    length = torch.export.Dim("shown", min=1, max=LONGEST)
    free = {**graph.FREE, **{name: {0: length} for name in REFERENCE}}
    return {
        EMBED: Traced(critic.watch, seen, GIVEN[EMBED]),
        JUDGE: Traced(_judge(critic), {**now, **first, **reference}, GIVEN[JUDGE], free),
        COMPARE: Traced(
            _compare(critic), {**earlier, **now, **first, **reference}, GIVEN[COMPARE], free
        ),
    }  # fmt: skip


def _judge(critic: Exportable) -> Callable[..., tuple[Tensor, ...]]:
    def judge(now: Tensor, first: Tensor, *shown: Tensor) -> tuple[Tensor, ...]:
        return tuple(critic.judge(now, first, Shown(*shown)))

    return judge


def _compare(critic: Exportable) -> Callable[..., tuple[Tensor, ...]]:
    """Compare with all earlier moments in one call: [b, k, d] against [b, d]."""

    def compare(earlier: Tensor, now: Tensor, first: Tensor, *shown: Tensor) -> tuple[Tensor, ...]:
        pairs = earlier.shape[1]
        # Each as often as it is compared: the same numbers twice are then no change to the bit.
        now, first = (x[:, None].expand(-1, pairs, -1).flatten(0, 1) for x in (now, first))
        change = critic.compare(earlier.flatten(0, 1), now, first, Shown(*shown))
        return tuple(x.unflatten(0, (-1, pairs)) for x in change)

    return compare
