"""How fast this machine computes at a model's own shapes, and what counted operations take by that.

The largest shapes of each kind are timed by themselves; the others are taken to be as fast. What
multiplies nothing takes as long as its bytes are moved, and every call a little.
"""

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import conv_flop_count, sdpa_flop_count

from benchmarks.training.presets.flop_memory_counter import Cost, Kernel

ROWS = 512
"""Rows of a product that are timed: more change the rate little, and take long on a CPU."""
HEADS = 8
"""Heads times batch of an attention that are timed; pictures of a convolution."""
TIMED = 2
"""Shapes of each kind and type of number that are timed."""
ROUNDS = 3
"""Timings of a shape, of which the median counts."""
LEAST_S = 0.02
"""A timing repeats a short kernel for at least so long."""

LARGE, SMALL = 2**22, 2**8
"""Numbers in tensors that are added to find how fast bytes are moved, and what a call takes."""


class Speed(NamedTuple):
    """How fast a machine is at the shapes of something."""

    rates: dict[tuple[str, torch.dtype], float]
    """Operations per second, by kind of kernel and type of number."""
    moved: float
    """Bytes per second that an addition reads and writes."""
    call_s: float
    """Seconds of an operation of torch on next to nothing."""

    def seconds(self, cost: Cost) -> float:
        """Return what something takes."""
        multiplied = sum(n / self.rates[key.kind, key.dtype] for key, n in cost.flops.items())
        return multiplied + cost.moved / self.moved + cost.calls * self.call_s


def speed(costs: Iterable[Cost], device: str) -> Speed:
    """Return how fast this machine is at what some things compute."""
    flops: Counter[Kernel] = Counter()
    for cost in costs:
        flops.update(cost.flops)
    large, small = (torch.zeros(size, device=device) for size in (LARGE, SMALL))
    call_s = timed(lambda: small + small, device)
    moved = 3 * large.nbytes / timed(lambda: large + large, device)
    return Speed(_rates(flops, device), moved, call_s)


def _rates(flops: Counter[Kernel], device: str) -> dict[tuple[str, torch.dtype], float]:
    groups: dict[tuple[str, torch.dtype], list[tuple[Kernel, int]]] = defaultdict(list)
    for kernel, count in flops.most_common():
        groups[kernel.kind, kernel.dtype].append((kernel, count))
    rates = {}
    for key, members in groups.items():
        timed = [(count, rate(kernel, device)) for kernel, count in members[:TIMED]]
        # As long as they take together, in the shares that they have.
        rates[key] = sum(c for c, _ in timed) / sum(c / r for c, r in timed)
    return rates


def rate(kernel: Kernel, device: str) -> float:
    """Return operations per second of one kernel."""
    run, count = _prepared(kernel, device)
    return count / timed(run, device)


def timed(run: Callable[[], Any], device: str) -> float:
    """Return seconds: the median of several timings."""
    run()
    repeats = max(1, round(LEAST_S / max(_lasts(run, 1, device), 1e-6)))
    return statistics.median(_lasts(run, repeats, device) / repeats for _ in range(ROUNDS))


def clock(device: str) -> float:
    """Return seconds: on a CPU those that this process had, whatever else the machine does."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def _lasts(run: Callable[[], Any], repeats: int, device: str) -> float:
    begin = clock(device)
    for _ in range(repeats):
        run()
    return clock(device) - begin


def _prepared(kernel: Kernel, device: str) -> tuple[Callable[[], Any], float]:
    """Return a kernel of at most a certain size, ready to run, and its operations."""

    def made(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=kernel.dtype, device=device).fill_(0.01)

    if kernel.kind == "matmul":
        batch, rows, inner, columns = kernel.shape
        batch, rows = min(batch, max(1, ROWS // rows)), min(rows, ROWS)
        shapes = (rows, inner), (inner, columns)
        if batch > 1:
            shapes = (batch, *shapes[0]), (batch, *shapes[1])  # type: ignore[assignment]
        left, right = (made(*shape) for shape in shapes)
        return lambda: left @ right, 2.0 * batch * rows * inner * columns
    if kernel.kind == "attention":
        rows, heads, queries, keys, width = kernel.shape
        few = min(rows * heads, HEADS)
        query, key = (few, 1, queries, width), (few, 1, keys, width)
        parts = made(*query), made(*key), made(*key)
        count = sdpa_flop_count(query, key, key)
        return lambda: nn.functional.scaled_dot_product_attention(*parts), float(count)
    pictures, channels, height, wide, out, tall, across, stride = kernel.shape
    picture = made(min(pictures, HEADS), channels, height, wide)
    weight = made(out, channels, tall, across)
    shape = nn.functional.conv2d(picture, weight, stride=stride).shape
    count = conv_flop_count(list(picture.shape), list(weight.shape), list(shape))
    return lambda: nn.functional.conv2d(picture, weight, stride=stride), float(count)
