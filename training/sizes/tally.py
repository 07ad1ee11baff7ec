"""Counts what torch computes and keeps while it runs: memory that is held, and operations by shape.

It works alike on tensors that are there and on tensors without numbers. What is counted as memory is
every storage that an operation makes, from then until nobody holds it any more: activations kept for
the backward pass, gradients, temporaries. Memory inside an operation is not seen.
"""

import math
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten


class Kernel(NamedTuple):
    """An operation that costs time by its shapes."""

    kind: str
    """matmul, attention or convolution."""
    shape: tuple[int, ...]
    """matmul: batch, rows, inner, columns; attention: batch, heads, queries, keys, width; 0s."""
    dtype: torch.dtype
    """Of what is multiplied."""


class Tally(TorchDispatchMode):
    """See the module's sentence; `peak` in bytes, `flops` by kernel, a multiply-add counted as 2."""

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        """Start to count.

        Args:
            before: Tensors that were there before: they are not counted.
        """
        super().__init__()
        self.held = self.peak = 0
        self.flops: Counter[Kernel] = Counter()
        self._kept = [tensor.untyped_storage() for tensor in before]
        self._known = {storage._cdata for storage in self._kept}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it."""
        given = kwargs or {}
        out = func(*args, **given)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._hold(leaf.untyped_storage())
        self._count(func, args, given, out)
        return out

    def _hold(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._release, key, size).atexit = False

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size

    def _count(self, func: Any, args: tuple[Any, ...], given: Any, out: Any) -> None:
        packet = getattr(func, "overloadpacket", None)
        if packet is aten._scaled_dot_product_flash_attention_for_cpu:
            count = sdpa_flop_count(*(part.shape for part in args[:3]))
        elif packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
            count = sdpa_backward_flop_count(*(part.shape for part in args[:4]))
        elif packet in flop_registry:
            count = flop_registry[packet](*args, **given, out_val=out)
        else:
            return
        self.flops[_kernel(packet, args)] += count


def _kernel(packet: Any, args: tuple[Any, ...]) -> Kernel:
    """Return what was run; its shape only where it can be timed by itself."""
    tensors = [part for part in args if isinstance(part, Tensor)]
    kind = tensors[0].dtype
    shapes = [tuple(part.shape) for part in tensors]
    if packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        left, right = shapes[-2:]
        return Kernel("matmul", (math.prod(left[:-2]), left[-2], left[-1], right[-1]), kind)
    name = str(packet)
    if "attention" in name:
        at = 1 if "backward" in name else 0
        query, key = shapes[at], shapes[at + 1]
        return Kernel("attention", (*query[:3], key[2], query[3]), kind)
    return Kernel("convolution", shapes[1] if len(shapes) > 1 else shapes[0], kind)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; each storage once, those without memory as if they had it."""
    return sum(part.numel() * part.element_size() for part in tensors)
