"""Batches and losses of a pairwise reward model; `training.reward_model.batches` samples them."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reward_models.core.interface import Reference
from reward_models.core.truth import DEAD_BAND
from reward_models.models.pairwise import PairwiseRewardModel
from vla.contracts.types import Frames
from vla.nn.grounding import grounding_loss

UNSURE = 0.02
"""A change between this and the dead band is no trend label."""
FOCUS = 2.0
"""Exponent of the focal loss (Lin et al. 2017): frames before the end are many and easy."""
STEEPNESS = 8.0
"""Logits per unit of final progress in the preference loss."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Weights of the losses."""

    value: float = 1.0
    """Cross-entropy of absolute progress over bins."""
    difference: float = 5.0
    """Squared error of the change within pairs."""
    trend: float = 0.3
    """Cross-entropy of regress, stagnation, progress."""
    done: float = 1.0
    """Focal cross-entropy of success."""
    match: float = 0.3
    """Cross-entropy of the instruction belonging to the scene."""
    preference: float = 0.3
    """Bradley-Terry between ends of episodes: success over partial success over failure."""
    goal: float = 3.0
    """Huber loss of the arm's state when the work is done, in standard deviations."""
    grounding: float = 0.1
    """Divergence of the backbone's attention from the places of what the instruction names, where
    the backbone has queries and the data say it."""
    corrected: float = 0.3
    """Cross-entropy of corrections by people, if there are any."""


@dataclass(frozen=True, kw_only=True)
class RewardModelBatch:
    """F frames of B episodes; Q of them are scored, the others only update memory; P pairs."""

    frames: Frames
    """The frames; those of an episode in order of time."""
    task: tuple[str, ...]
    """Instruction of each of the B episodes; it may be a mismatched one."""
    loss_index: Tensor
    """i64 [q], frames that are scored, ascending; as many of each episode."""
    memory_index: Tensor
    """i64 [q], last frame in the memory of each scored one: itself or a later one."""
    first: Tensor
    """i64 [q], place among the scored frames of the first frame of each one's episode."""
    last: Tensor
    """i64 [b], place among the scored frames of the last frame of each episode."""
    progress: Tensor
    """f32 [q], true progress; 0 under a mismatched instruction."""
    success: Tensor
    """f32 [q], true success, 0 or 1."""
    matches: Tensor
    """f32 [b], 0 where the instruction is mismatched."""
    goal: Tensor
    """f32 [b, g], standardised state of the arm at the largest progress; NaN where unknown."""
    referents: Tensor
    """f32 [q, v, r, 2], where in the images the things are that the instruction names
    (`vla.contracts.referents`); NaN where unknown."""
    goal_weight: Tensor
    """f32 [q], weight of the goal loss of each scored frame: the work that is left."""
    pairs: Tensor
    """i64 [p, 2], scored frames a and b of the same episode."""
    reference: Tensor
    """i64 [b], episode of this batch that serves as the reference, -1 for none."""
    preferences: Tensor
    """i64 [n, 2], pairs of episodes, the one with the better end first."""


@dataclass(frozen=True, kw_only=True)
class CorrectionBatch:
    """Frames of B corrected moments, as many of each: the last is now, the last but one before."""

    frames: Frames
    """The frames, in order of episode and time."""
    task: tuple[str, ...]
    """Instruction of each."""
    trend: Tensor
    """i64 [b]: 0 regress, 1 stagnation, 2 progress, -1 where the trend was not corrected."""
    success: Tensor
    """i64 [b]: 0 or 1, -1 where success was not corrected."""


T = TypeVar("T")


def to_device(batch: T, device: torch.device) -> T:
    """Return a dataclass with its tensors, and those of dataclasses in it, on a device."""
    moved: dict[str, Any] = {}
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            moved[name] = value.to(device)
        elif isinstance(value, Frames):
            moved[name] = to_device(value, device)
    return replace(batch, **moved)  # type: ignore[type-var]


def correction_loss(
    reward_model: PairwiseRewardModel, batch: CorrectionBatch, weights: Losses
) -> Tensor:
    """Return the weighted cross-entropy of the corrected trends and successes.

    The batch normalisation uses its running statistics and does not update them: a few corrections
    do not represent the data.
    """
    norms = [m for m in reward_model.modules() if isinstance(m, nn.BatchNorm1d)]
    training = [norm.training for norm in norms]
    for norm in norms:
        norm.eval()
    tokens, refine = reward_model.encode(batch.frames, batch.task)
    episode_index = torch.as_tensor(batch.frames.episode_index)
    episodes, size = len(batch.task), len(episode_index) // len(batch.task)
    every = torch.arange(len(episode_index), device=episode_index.device)
    embedded = refine(memory_at(tokens, episode_index, every)).unflatten(0, (episodes, size))
    for norm, was in zip(norms, training, strict=True):
        norm.train(was)
    first = embedded[:, 0]
    before, now = (reward_model.features(embedded[:, k], first, None) for k in (-2, -1))
    trend = F.cross_entropy(
        reward_model.score_pairs(before, now).trend, batch.trend, ignore_index=-1, reduction="sum"
    )
    ended = batch.success >= 0
    done = F.binary_cross_entropy_with_logits(
        reward_model.score_features(now).done[ended], batch.success[ended].float(), reduction="sum"
    )
    count = (batch.trend >= 0).sum() + ended.sum()
    return weights.corrected * (trend + done) / count.clamp(min=1)


def loss(
    reward_model: PairwiseRewardModel, batch: RewardModelBatch, weights: Losses
) -> dict[str, Tensor]:
    """Return the weighted losses by name; training minimises their sum."""
    tokens, refine = reward_model.encode(batch.frames, batch.task)
    episode_index = torch.as_tensor(batch.frames.episode_index)
    memory = memory_at(tokens, episode_index, batch.memory_index)
    embedded, attention = refine.only(batch.loss_index).with_attention(memory)
    episode_index = episode_index[batch.loss_index]
    first = embedded[batch.first]
    reference = _references(embedded, episode_index, batch)
    features = reward_model.features(embedded, first, reference)
    scores, logits = reward_model.score_features(features), reward_model.value(features)
    mean = logits.softmax(1) @ reward_model.levels
    a, b = batch.pairs.unbind(1)
    change = reward_model.score_pairs(features[a], features[b])
    true = batch.progress[b] - batch.progress[a]
    goal = reward_model.goal(embedded)
    losses = {
        "value": F.cross_entropy(logits, two_hot(batch.progress, reward_model.levels)),
        "difference": (change.difference - true).square().mean(),
        "trend": F.cross_entropy(change.trend, trend_of(true), ignore_index=-1),
        "done": focal(scores.done, batch.success),
        "match": F.binary_cross_entropy_with_logits(scores.match, batch.matches[episode_index]),
        "preference": preference(mean[batch.last], batch.preferences),
        "goal": goal_error(goal, batch.goal[episode_index], batch.goal_weight),
    }
    if attention is not None:
        losses["grounding"] = grounding_loss(attention, batch.referents).mean()
    return {name: getattr(weights, name) * value for name, value in losses.items()}


def goal_losses(
    reward_model: PairwiseRewardModel, batch: RewardModelBatch, weights: Losses
) -> dict[str, Tensor]:
    """Return the weighted goal loss, over the scored frames that have a goal and a weight, and the
    grounding loss of these, if there is one.
    """
    tokens, refine = reward_model.encode(batch.frames, batch.task)
    episode_index = torch.as_tensor(batch.frames.episode_index)
    goal = batch.goal[episode_index[batch.loss_index]]
    counted = (batch.goal_weight > 0) & ~goal.isnan().all(1)
    index = batch.loss_index[counted]
    memory = memory_at(tokens, episode_index, index)
    embedded, attention = refine.only(index).with_attention(memory)
    predicted = reward_model.goal(embedded)
    losses = {"goal": goal_error(predicted, goal[counted], batch.goal_weight[counted])}
    if attention is not None:
        losses["grounding"] = grounding_loss(attention, batch.referents[counted]).mean()
    return {name: getattr(weights, name) * value for name, value in losses.items()}


def memory_at(tokens: Tensor, episode_index: Tensor, last: Tensor) -> Tensor:
    """Return the maximum of tokens [f, m] up to frames `last` i64 [q] minus the first frame's.

    The result is [q, m]; frames of an episode are in order of time.
    """
    count = torch.bincount(episode_index)
    begin = count.cumsum(0) - count
    place = torch.arange(len(episode_index), device=tokens.device) - begin[episode_index]
    grid = tokens.new_full((len(count), int(count.max()), tokens.shape[1]), -torch.inf)
    grid = grid.index_put((episode_index, place), tokens)
    episode = episode_index[last]
    return grid.cummax(1).values[episode, place[last]] - tokens[begin[episode]]


def _references(embedded: Tensor, episode_index: Tensor, batch: RewardModelBatch) -> Reference:
    """Return the reference of each scored frame: keys [q, k, d], progress [q, k], NaN for none."""
    size = len(episode_index) // len(batch.reference)
    keys = embedded.detach().unflatten(0, (-1, size))  # gradients reach it through its own losses
    episode = batch.reference.clamp(min=0)
    progress = batch.progress.unflatten(0, (-1, size))[episode]
    progress = torch.where(batch.reference[:, None] < 0, torch.nan, progress)
    return Reference(keys[episode][episode_index], progress[episode_index])


def two_hot(value: Tensor, levels: Tensor) -> Tensor:
    """Return probabilities [n, bins] on the two levels next to each value, with that mean."""
    place = value.clamp(0, 1) * (len(levels) - 1)
    low = place.floor().long().clamp(max=len(levels) - 2)
    upper = (place - low)[:, None]
    target = torch.zeros(len(value), len(levels), device=value.device)
    return target.scatter_(1, low[:, None], 1 - upper).scatter_(1, low[:, None] + 1, upper)


def trend_of(difference: Tensor) -> Tensor:
    """Return 0, 1, 2 for regress, stagnation, progress, and -1 where it is too close to tell."""
    size = difference.abs()
    moving = torch.where(difference < 0, 0, 2)
    trend = torch.where(size >= DEAD_BAND, moving, torch.ones_like(moving))
    return torch.where((size > UNSURE) & (size < DEAD_BAND), -1, trend)


def focal(logit: Tensor, target: Tensor) -> Tensor:
    """Return the mean focal loss, scaled to that of cross-entropy at even odds."""
    cross = F.binary_cross_entropy_with_logits(logit, target, reduction="none")
    return ((1 - torch.exp(-cross)) ** FOCUS * cross).mean() * 2.0**FOCUS


def goal_error(predicted: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean Huber loss of goals [q, g]; NaN goals do not count.

    Only the channels that both `predicted` and `goal` have are compared.
    """
    width = min(predicted.shape[1], goal.shape[1])
    predicted, goal = predicted[:, :width], goal[:, :width]
    weights = torch.where(goal.isnan(), 0.0, weight[:, None])
    error = F.huber_loss(predicted, goal.nan_to_num(), reduction="none")
    return (weights * error).sum() / weights.sum().clamp(min=1.0)


def preference(ends: Tensor, pairs: Tensor) -> Tensor:
    """Return the Bradley-Terry loss of final progress [b] over (better, worse) pairs [q, 2].

    0 without pairs.
    """
    if not len(pairs):
        return ends.sum() * 0.0
    return -F.logsigmoid(STEEPNESS * (ends[pairs[:, 0]] - ends[pairs[:, 1]])).mean()
