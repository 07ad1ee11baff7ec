"""Tunes the adapter of a vision-language reward model on labelled pairs.

The prompts are those of inference, one forward pass each; every answer is trained with
cross-entropy over its candidate tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reward_models.core.interface import Reference
from reward_models.core.truth import DEAD_BAND
from reward_models.models.vlm import VlmRewardModel

GRAD_CLIP_NORM = 1.0
"""Largest norm of the gradient."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """N pairs of frames of the same episodes, in any order of time; NaN labels where unknown."""

    a: Tensor
    """u8 [n, d], embeddings of `VlmRewardModel.embed`."""
    b: Tensor
    """u8 [n, d]."""
    first: Tensor
    """u8 [n, d], the first frame of each one's episode."""
    progress: Tensor
    """f32 [n, 2], at a and at b, in [0, 1]."""
    done: Tensor
    """f32 [n], 1 where the task is complete at b, else 0."""
    match: Tensor
    """f32 [n], 1 where the instruction belongs to the scene, 0 where it is mismatched."""


def pair_loss(
    reward_model: VlmRewardModel, pairs: Pairs, reference: Reference | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Return the mean cross-entropy of all answers, in nats, and that of each kind of answer."""
    now, done, match = reward_model.frame_logits(pairs.b, pairs.first, reference)
    at_a, at_b, trend = reward_model.pair_logits(pairs.a, pairs.b, pairs.first, reference)
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
    """Return the mean cross-entropy of probabilities [n, c], without rows that hold NaN."""
    valid = ~target.isnan().any(1)
    loss = -(target[valid] * F.log_softmax(logits[valid], 1)).sum(1)
    return loss.sum() / max(len(loss), 1)


def digit_targets(progress: Tensor, digits: int) -> Tensor:
    """Return probabilities [n, digits] of the two digits next to each progress, with that mean."""
    place = progress.clamp(0.0, 1.0) * (digits - 1)
    away = (place[:, None] - torch.arange(digits, device=place.device)).abs()
    return (1.0 - away).clamp(min=0.0)


def trend_targets(change: Tensor) -> Tensor:
    """Return one-hot probabilities [n, 3] of worse, same, better; NaN where unknown."""
    kind = torch.where(change.abs() < DEAD_BAND, 1, torch.where(change > 0, 2, 0))
    certain = F.one_hot(kind, 3).float()
    return torch.where(change.isnan()[:, None], torch.nan, certain)


def tune(
    reward_model: VlmRewardModel, batches: Iterable[Pairs], lr: float
) -> Iterator[dict[str, float]]:
    """Take one step of AdamW per batch on the adapter, in place; yield "loss" and its parts.

    Raises:
        ValueError: the reward model has no adapter.
    """
    weights = [p for p in reward_model.parameters() if p.requires_grad]
    if not weights:
        raise ValueError("lora_rank: got 0, expected 1 or more; set it to tune an adapter")
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    for pairs in batches:
        loss, parts = pair_loss(reward_model, pairs)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, GRAD_CLIP_NORM)
        optimizer.step()
        yield {"loss": float(loss.detach()), **parts}
