"""Tunes the adapter of a vision-language critic on labelled pairs; drawing pairs is done elsewhere.

The same forms are filled in as in use, in one forward pass each, and every answer is learned by
cross-entropy on the tokens that may stand there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reward_models.critic import Shown
from reward_models.critics.vlm import VlmCritic
from reward_models.truth import DEAD_BAND

CLIP = 1.0
"""Largest norm of a gradient."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """N pairs of moments of the same episodes, in no order of time; NaN where nothing is known."""

    a: Tensor
    """u8 [n, d], embeddings of `VlmCritic.embed`."""
    b: Tensor
    """u8 [n, d]."""
    first: Tensor
    """u8 [n, d], the first moment of each one's episode."""
    progress: Tensor
    """f32 [n, 2], at a and at b, in [0, 1]."""
    done: Tensor
    """f32 [n], 1 where the task is complete at b, else 0."""
    match: Tensor
    """f32 [n], 1 where the instruction belongs to the scene, 0 where it is a foreign one."""


def pair_loss(
    critic: VlmCritic, pairs: Pairs, shown: Shown | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Return the mean cross-entropy of all answers, in nats, and that of each kind of answer."""
    now, done, match = critic.ask_moment(pairs.b, pairs.first, shown)
    at_a, at_b, trend = critic.ask_pair(pairs.a, pairs.b, pairs.first, shown)
    before, after = pairs.progress.unbind(1)
    losses = {
        "value": cross_entropy(now, digit_targets(after, now.shape[1])),
        "pair": 0.5 * cross_entropy(at_a, digit_targets(before, at_a.shape[1]))
        + 0.5 * cross_entropy(at_b, digit_targets(after, at_b.shape[1])),
        "trend": cross_entropy(trend, trend_targets(after - before)),
        "done": cross_entropy(done, torch.stack([1 - pairs.done, pairs.done], 1)),
        "match": cross_entropy(match, torch.stack([1 - pairs.match, pairs.match], 1)),
    }
    total = torch.stack(list(losses.values())).mean()
    return total, {name: float(value.detach()) for name, value in losses.items()}


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of probabilities [n, c], leaving out rows that hold NaN."""
    known = ~target.isnan().any(1)
    loss = -(target[known] * F.log_softmax(logits[known], 1)).sum(1)
    return loss.sum() / max(len(loss), 1)


def digit_targets(progress: Tensor, digits: int) -> Tensor:
    """Return probabilities [n, digits] of the two digits beside each progress, with that mean."""
    place = progress.clamp(0.0, 1.0) * (digits - 1)
    away = (place[:, None] - torch.arange(digits, device=place.device)).abs()
    return (1.0 - away).clamp(min=0.0)


def trend_targets(change: Tensor) -> Tensor:
    """Return probabilities [n, 3] of worse, same, better: one is certain, or all are NaN."""
    kind = torch.where(change.abs() < DEAD_BAND, 1, torch.where(change > 0, 2, 0))
    certain = F.one_hot(kind, 3).float()
    return torch.where(change.isnan()[:, None], torch.nan, certain)


def tune_(critic: VlmCritic, batches: Iterable[Pairs], rate: float) -> Iterator[dict[str, float]]:
    """Descend the loss on one batch after the other; yield "loss" and its parts after each.

    Args:
        critic: With an adapter; changed in place.
        batches: As many as there are to be updates.
        rate: Learning rate of AdamW.

    Raises:
        ValueError: the critic has no adapter.
    """
    weights = [p for p in critic.parameters() if p.requires_grad]
    if not weights:
        raise ValueError("nothing to tune: lora_rank is 0, expected 1 or more; set it")
    optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    for pairs in batches:
        loss, parts = pair_loss(critic, pairs)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimiser.step()
        yield {"loss": float(loss.detach()), **parts}
