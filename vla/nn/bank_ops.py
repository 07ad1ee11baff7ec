"""Arithmetic of a slot memory: append, choose a pair, merge; fixed shapes, no loop or scatter.

The choice of the pair is the only thing that is not linear in what was written. So once the pairs
are known, slot contents are a mixing matrix times the written tokens: `mixing` finds the matrix
without a gradient, and a whole episode is then read in one batched product.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Eviction = Literal["ward", "fifo", "sink", "even"]
"""How a full memory makes room: merge the most similar neighbours, drop the oldest, drop the oldest
but the first `SINKS` of the episode, or drop what leaves the others spread most evenly over it."""
SINKS = 4
"""First entries that `sink` keeps (Xiao et al. 2023, arXiv 2309.17453, have as many)."""
HOLE_COST = -1.0
"""Cost of a pair with an empty member: below every real cost, so holes are consumed first."""
ALIKE_COST = -2.0
"""Cost of a pair that looks alike: merging it comes before consuming a hole."""
PROTECTED_COST = 1e9
"""Added to pairs that touch the oldest slot or the newest ones: above every real cost."""
TIE_COST = 1e-5
"""Times the pair's index: equal pairs merge oldest first, on every device."""


class Slots(NamedTuple):
    """Memory content, oldest slot first."""

    tokens: Tensor
    """f32 [b, l, n, d]."""
    time: Tensor
    """f32 [b, l], control steps since the episode began."""
    count: Tensor
    """f32 [b, l], decisions held; 0 is empty."""


def empty(batch: int, slots: int, tokens: int, width: int, device: torch.device) -> Slots:
    """Return a memory in which nothing is written."""
    return Slots(
        torch.zeros(batch, slots, tokens, width, device=device),
        torch.zeros(batch, slots, device=device),
        torch.zeros(batch, slots, device=device),
    )


def ward_cost(tokens: Tensor, count: Tensor, recent: int, merge_threshold: float = 0.0) -> Tensor:
    """Return the cost f32 [b, m-1] of merging each adjacent pair of m entries.

    Ward's criterion (Ward 1963) on the token that differs most: max over tokens of the mean square
    difference, times c_i c_j / (c_i + c_j). A mean over tokens would drown a cue that shows in one.
    A pair that differs by less than `merge_threshold` of its mean square costs less than a hole.
    """
    left, right = count[:, :-1], count[:, 1:]
    difference = (tokens[:, :-1] - tokens[:, 1:]).square().mean(-1).amax(-1)
    cost = difference * left * right / (left + right).clamp(min=1.0)
    index = torch.arange(cost.shape[1], device=cost.device)
    filled = count > 0
    first = filled & (filled.float().cumsum(1) == 1)  # TensorRT sums no integers
    protected = first[:, :-1] | first[:, 1:] | (index >= cost.shape[1] - recent)
    cost = _with_holes(cost + PROTECTED_COST * protected, left, right, index)
    if not merge_threshold:
        return cost
    power = tokens.square().mean((-1, -2))
    alike = difference < merge_threshold * (power[:, :-1] + power[:, 1:]) / 2
    alike = alike & (left > 0) & (right > 0)
    return torch.where(alike, ALIKE_COST + TIE_COST * index, cost)


def fifo_cost(count: Tensor, sinks: int) -> Tensor:
    """Return costs f32 [b, m-1] that choose the oldest pair after the first `sinks` entries."""
    left, right = count[:, :-1], count[:, 1:]
    index = torch.arange(left.shape[1], device=count.device)
    cost = (PROTECTED_COST * (index < sinks)).expand_as(left)
    return _with_holes(cost, left, right, index)


def even_cost(time: Tensor, count: Tensor) -> Tensor:
    """Return costs f32 [b, m-1] of dropping the newer member of each adjacent pair.

    That is the gap in control steps it would leave; oldest and newest entry stay.
    """
    left, right = count[:, :-1], count[:, 1:]
    index = torch.arange(left.shape[1], device=count.device)
    gap = (time[:, 2:] - time[:, :-2]).clamp(min=0.0)  # negative at a hole
    newest = torch.full_like(left[:, :1], PROTECTED_COST)
    return _with_holes(torch.cat([gap, newest], 1), left, right, index)


def _with_holes(cost: Tensor, left: Tensor, right: Tensor, index: Tensor) -> Tensor:
    hole = (left == 0) | (right == 0)
    return torch.where(hole, torch.full_like(cost, HOLE_COST), cost) + TIE_COST * index


def pair_weights(left: Tensor, right: Tensor, eviction: Eviction) -> tuple[Tensor, Tensor]:
    """Return the shares of the two members in what becomes of them.

    By count, or all to the newer one (fifo, sink) or to the older one (even).
    """
    if eviction in {"fifo", "sink"}:
        keep_left = (right == 0).float()
        return keep_left, 1 - keep_left
    if eviction == "even":
        keep_left = (left > 0).float()
        return keep_left, 1 - keep_left
    total = (left + right).clamp(min=1.0)
    return left / total, right / total


def merge(values: Tensor, pair: Tensor, left_share: Tensor, right_share: Tensor) -> Tensor:
    """Return values [b, m, ...] with entries pair and pair + 1 replaced by their weighted sum.

    Shift and select: entry i comes from i before the pair and from i + 1 after it.

    Args:
        values: [b, m, ...].
        pair: i64 [b], index of the older member.
        left_share: f32 [b, m-1], weight of the older member of every adjacent pair.
        right_share: f32 [b, m-1], weight of the newer one.
    """
    trailing = (1,) * (values.dim() - 2)
    left, right = values[:, :-1], values[:, 1:]
    index = torch.arange(left.shape[1], device=values.device)[None]
    before = (index < pair[:, None]).view(*index.expand(len(pair), -1).shape, *trailing)
    at = (index == pair[:, None]).view(before.shape)
    a, b = (share.view(*share.shape, *trailing) for share in (left_share, right_share))
    return torch.where(before, left, torch.where(at, a * left + b * right, right))


def write(
    slots: Slots,
    x: Tensor,
    now: Tensor,
    mask: Tensor,
    *,
    recent: int,
    eviction: Eviction,
    merge_threshold: float = 0.0,
) -> tuple[Slots, Tensor]:
    """Append one decision and merge one pair, so that the number of slots stays.

    Args:
        slots: Memory of l slots.
        x: f32 [b, n, d], tokens to store.
        now: f32 [b], control steps since the episode began.
        mask: f32 [b], 1 to write, 0 to leave the memory as it is (a hole is appended).
        recent: Newest entries that are not merged while others can be.
        eviction: How room is made.
        merge_threshold: With `ward`, neighbours that differ by less than this share of their mean
            square merge even if there is room.

    Returns:
        The new memory and the chosen pair i64 [b].
    """
    tokens = torch.cat([slots.tokens, (x * mask[:, None, None])[:, None]], 1)
    time = torch.cat([slots.time, (now * mask)[:, None]], 1)
    count = torch.cat([slots.count, mask[:, None]], 1)
    if eviction == "ward":
        cost = ward_cost(tokens, count, recent, merge_threshold)
    elif eviction == "even":
        cost = even_cost(time, count)
    else:
        cost = fifo_cost(count, SINKS if eviction == "sink" else 0)
    pair = cost.argmin(1)
    left, right = pair_weights(count[:, :-1], count[:, 1:], eviction)
    ones = torch.ones_like(left)
    kept = (ones, ones) if eviction == "ward" else (left, right)
    merged_count = merge(count, pair, *kept)
    return Slots(
        merge(tokens, pair, left, right), merge(time, pair, left, right), merged_count
    ), pair


class Mixing(NamedTuple):
    """What each slot holds when each decision is taken, as shares of what was written before."""

    share: Tensor
    """f32 [b, t, l, t]: slots before decision t's own write are share[:, t] @ written tokens."""
    count: Tensor
    """f32 [b, t, l]."""
    time: Tensor
    """f32 [b, t, l], control steps since the episode began."""


@torch.no_grad()
def mixing(
    x: Tensor, now: Tensor, mask: Tensor, *, slots: int, recent: int, eviction: Eviction,
    merge_threshold: float = 0.0,
) -> Mixing:  # fmt: skip
    """Find the mixing matrices of whole episodes that start with an empty memory.

    Args:
        x: f32 [b, t, n, d], tokens written at each decision.
        now: f32 [b, t], control steps since the episode began.
        mask: f32 [b, t], 1 where the decision is written.
        slots: Number of slots.
        recent: As in `write`.
        eviction: As in `write`.
        merge_threshold: As in `write`.
    """
    batch, steps = now.shape
    # More slots than are ever filled, and one to append to, only take time.
    filled = min(slots, steps + 1)
    memory = empty(batch, filled, x.shape[2], x.shape[3], x.device)
    share = torch.zeros(batch, filled, steps, device=x.device)
    unit = torch.eye(steps, device=x.device)
    shares, counts, times = [], [], []
    for t in range(steps):
        shares.append(share)
        counts.append(memory.count)
        times.append(memory.time)
        count = torch.cat([memory.count, mask[:, t : t + 1]], 1)
        left, right = pair_weights(count[:, :-1], count[:, 1:], eviction)
        memory, pair = write(
            memory, x[:, t], now[:, t], mask[:, t], recent=recent, eviction=eviction,
            merge_threshold=merge_threshold,
        )  # fmt: skip
        appended = torch.cat([share, (mask[:, t, None] * unit[t])[:, None]], 1)
        share = merge(appended, pair, left, right)
    holes = slots - filled
    return Mixing(
        functional.pad(torch.stack(shares, 1), (0, 0, holes, 0)),
        functional.pad(torch.stack(counts, 1), (holes, 0)),
        functional.pad(torch.stack(times, 1), (holes, 0)),
    )
