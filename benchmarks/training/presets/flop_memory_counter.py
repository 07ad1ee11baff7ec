"""Counts what torch computes and keeps while it runs: memory that is held, operations by shape.

It works alike on tensors that are there and on tensors without numbers. Memory is every storage
that an operation makes, from then until nobody holds it any more: activations kept for the backward
pass, gradients, temporaries. What an operation needs inside itself is not seen.
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
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


class Kernel(NamedTuple):
    """An operation that costs time by its shapes."""

    kind: str
    """matmul, attention or convolution."""
    shape: tuple[int, ...]
    """matmul: batch, rows, inner, columns; attention: batch, heads, queries, keys, width;
    convolution: pictures, channels, height, width, channels that come out, height and width of the
    weights, stride."""
    dtype: torch.dtype
    """Of what is multiplied."""


class Cost(NamedTuple):
    """What something computes."""

    flops: Counter[Kernel]
    """Operations by kernel."""
    moved: int
    """Bytes that are read and written by what multiplies nothing."""
    calls: int
    """Operations of torch that are called."""


class Tally(TorchDispatchMode):
    """See the module's sentence; `peak` and `moved` in bytes, a multiply-add is two of `flops`."""

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        """Start to count.

        Args:
            before: Tensors that were there before: they are not counted.
        """
        super().__init__()
        self.held = self.peak = 0
        self.flops: Counter[Kernel] = Counter()
        self.moved = self.calls = 0
        self._kept = [tensor.untyped_storage() for tensor in before]
        self._known = {_key(storage) for storage in self._kept}

    @property
    def cost(self) -> Cost:
        """What was computed."""
        return Cost(self.flops, self.moved, self.calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it."""
        options = kwargs or {}
        out = func(*args, **options)
        outputs = [part for part in tree_leaves(out) if isinstance(part, Tensor)]
        fresh = [self._hold(part.untyped_storage()) for part in outputs]
        if any(fresh) or func._schema.is_mutable:  # noqa: SLF001  others are views
            self.calls += 1
            if not self._count(func, args, options, out):
                read = [part for part in tree_leaves(args) if isinstance(part, Tensor)]
                self.moved += size_of([*read, *outputs])
        return out

    def _hold(self, storage: Any) -> bool:
        """Take note of a storage; returns whether it is a new one."""
        key, size = _key(storage), storage.nbytes()
        if key in self._known:
            return False
        self._known.add(key)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._release, key, size).atexit = False
        return True

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size

    def _count(self, func: Any, args: tuple[Any, ...], options: Any, out: Any) -> bool:
        """Count what an operation multiplies; returns whether it does so."""
        packet = getattr(func, "overloadpacket", None)
        if packet is ATTENTION:
            count = sdpa_flop_count(*(part.shape for part in args[:3]))
        elif packet is ATTENTION_BACKWARD:
            count = sdpa_backward_flop_count(*(part.shape for part in args[:4]))
        elif packet in flop_registry:
            count = flop_registry[packet](*args, **options, out_val=out)
        else:
            return False
        self.flops[_kernel(packet, args)] += count
        return True


def _key(storage: Any) -> int:
    return storage._cdata  # noqa: SLF001  torch has no other name for a storage without memory


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
    at = 1 if "backward" in name else 0
    picture, weight = shapes[at : at + 2]
    stride = args[at + 3]
    return Kernel("convolution", (*picture, weight[0], *weight[2:], stride[0]), kind)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, of those without memory as if they had it."""
    return sum(part.numel() * part.element_size() for part in tensors)
