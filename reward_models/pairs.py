"""What a pairwise critic learns from, and its losses; `training.critic` draws the batches."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reward_models.critic import Shown
from reward_models.critics.pairwise import PairwiseCritic
from reward_models.truth import DEAD_BAND
from vla.contracts.types import Frames

UNSURE = 0.02
"""A change between this and the dead band teaches no trend."""
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
    """Bradley-Terry between ends of episodes: success over partial over failure."""
    goal: float = 3.0
    """Huber loss of where the arm will be when the work is done, in standard deviations."""
    corrected: float = 0.3
    """Cross-entropy of what people corrected, where there is any."""


@dataclass(frozen=True, kw_only=True)
class CriticBatch:
    """F frames of B episodes; Q of them are judged, the others only remembered; P pairs."""

    frames: Frames
    """The frames; those of an episode in order of time."""
    task: tuple[str, ...]
    """Instruction of each of the B episodes, perhaps a foreign one."""
    query: Tensor
    """i64 [q], frames that are judged, in order; as many of each episode."""
    history: Tensor
    """i64 [q], a frame of the same episode, not earlier: what was seen up to it is remembered."""
    first: Tensor
    """i64 [q], the query that is the first frame of each one's episode."""
    last: Tensor
    """i64 [b], the query that is the last frame of each episode."""
    progress: Tensor
    """f32 [q], the truth; 0 under a foreign instruction."""
    success: Tensor
    """f32 [q], the truth, 0 or 1."""
    own: Tensor
    """f32 [b], 0 where the instruction is foreign."""
    goal: Tensor
    """f32 [b, g], standardised state of the arm when most was done; NaN where that is unknown."""
    aim: Tensor
    """f32 [q], how much each query's foretelling of it counts: the work that is left."""
    pairs: Tensor
    """i64 [p, 2], queries a and b of the same episode."""
    shown: Tensor
    """i64 [b], episode of this batch that is shown as a reference, -1 for none."""
    better: Tensor
    """i64 [n, 2], episodes of which the first ended better than the second."""


@dataclass(frozen=True, kw_only=True)
class CorrectionBatch:
    """Frames of B corrected moments, as many of each: the last is now, the last but one before."""

    frames: Frames
    """The frames, in order of episode and time."""
    task: tuple[str, ...]
    """Instruction of each."""
    trend: Tensor
    """i64 [b]: 0 regress, 1 stagnation, 2 progress, -1 where nothing is said of it."""
    success: Tensor
    """i64 [b]: 0 or 1, -1 where nothing is said of it."""


def correction_loss(critic: PairwiseCritic, batch: CorrectionBatch, weights: Losses) -> Tensor:
    """Return the weighted loss of what people said: cross-entropy of trend and of success.

    A few corrections are no sample of what the critic sees: its running statistics are used as they
    are and stay what they were.
    """
    norms = [m for m in critic.modules() if isinstance(m, nn.BatchNorm1d)]
    learning = [norm.training for norm in norms]
    for norm in norms:
        norm.eval()
    kept, look = critic.encode(batch.frames, batch.task)
    row = torch.as_tensor(batch.frames.row)
    rows, size = len(batch.task), len(row) // len(batch.task)
    every = torch.arange(len(row))
    embedded = look(remembered(kept, row, every)).unflatten(0, (rows, size))
    for norm, was in zip(norms, learning, strict=True):
        norm.train(was)
    first = embedded[:, 0]
    before, now = (critic.read(embedded[:, k], first, None) for k in (-2, -1))
    told = batch.trend >= 0
    trend = F.cross_entropy(
        critic.change(before, now).trend, batch.trend, ignore_index=-1, reduction="sum"
    )
    ended = batch.success >= 0
    done = F.binary_cross_entropy_with_logits(
        critic.judgement(now).done[ended], batch.success[ended].float(), reduction="sum"
    )
    return weights.corrected * (trend + done) / (told.sum() + ended.sum()).clamp(min=1)


def loss(critic: PairwiseCritic, batch: CriticBatch, weights: Losses) -> dict[str, Tensor]:
    """Return the weighted losses by name; their sum is to be descended."""
    kept, look = critic.encode(batch.frames, batch.task)
    row = torch.as_tensor(batch.frames.row)
    embedded = look.only(batch.query)(remembered(kept, row, batch.history))
    row = row[batch.query]
    first = embedded[batch.first]
    seen = critic.read(embedded, first, _references(embedded, row, batch))
    moment, logits = critic.judgement(seen), critic.value_logits(seen)
    mean = logits.softmax(1) @ critic.levels
    change = critic.change(seen[batch.pairs[:, 0]], seen[batch.pairs[:, 1]])
    true = batch.progress[batch.pairs[:, 1]] - batch.progress[batch.pairs[:, 0]]
    found = {
        "value": F.cross_entropy(logits, two_hot(batch.progress, critic.levels)),
        "difference": (change.difference - true).square().mean(),
        "trend": F.cross_entropy(change.trend, trend_of(true), ignore_index=-1),
        "done": focal(moment.done, batch.success),
        "match": F.binary_cross_entropy_with_logits(moment.match, batch.own[row]),
        "preference": preference(mean[batch.last], batch.better),
        "goal": aimed(critic.goal(embedded), batch.goal[row], batch.aim),
    }
    return {name: getattr(weights, name) * value for name, value in found.items()}


def aim_loss(critic: PairwiseCritic, batch: CriticBatch) -> Tensor:
    """Return the loss of foretelling goals alone, at the frames from which they can be told."""
    kept, look = critic.encode(batch.frames, batch.task)
    row = torch.as_tensor(batch.frames.row)[batch.query]
    tells = (batch.aim > 0) & ~batch.goal[row].isnan().all(1)
    query = batch.query[tells]
    seen = remembered(kept, torch.as_tensor(batch.frames.row), query)
    return aimed(critic.goal(look.only(query)(seen)), batch.goal[row[tells]], batch.aim[tells])


def remembered(kept: Tensor, row: Tensor, history: Tensor) -> Tensor:
    """Return by how much the maximum up to each of `history` exceeds the first frame, [q, m]."""
    count = torch.bincount(row)
    begin = count.cumsum(0) - count
    place = torch.arange(len(row)) - begin[row]
    grid = kept.new_full((len(count), int(count.max()), kept.shape[1]), -torch.inf)
    grid = grid.index_put((row, place), kept)
    return grid.cummax(1).values[row[history], place[history]] - kept[begin[row[history]]]


def _references(embedded: Tensor, row: Tensor, batch: CriticBatch) -> Shown:
    """Return each query's reference episode: keys [q, k, d], progress [q, k], NaN for none."""
    size = len(row) // len(batch.shown)
    keys = embedded.detach().unflatten(0, (-1, size))  # gradients reach it through its own losses
    shown = batch.shown.clamp(min=0)
    progress = batch.progress.unflatten(0, (-1, size))[shown]
    progress = torch.where(batch.shown[:, None] < 0, torch.nan, progress)
    return Shown(keys[shown][row], progress[row])


def two_hot(value: Tensor, levels: Tensor) -> Tensor:
    """Return probabilities [n, bins] on the two levels beside each value, with that mean."""
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


def aimed(said: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean Huber loss of goals [q, g] where they are known; 0 where none is.

    What one of the two has more numbers than the other is left out.
    """
    width = min(said.shape[1], goal.shape[1])
    said, goal = said[:, :width], goal[:, :width]
    counted = torch.where(goal.isnan(), 0.0, weight[:, None])
    error = F.huber_loss(said, goal.nan_to_num(), reduction="none")
    return (counted * error).sum() / counted.sum().clamp(min=1.0)


def preference(ends: Tensor, better: Tensor) -> Tensor:
    """Return the Bradley-Terry loss of final progress [b] over pairs [q, 2]; 0 without pairs."""
    if not len(better):
        return ends.sum() * 0.0
    return -F.logsigmoid(STEEPNESS * (ends[better[:, 0]] - ends[better[:, 1]])).mean()
