"""Prepares the next batch, on its device, while the network trains on the last one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vla.contracts.types import EpisodeBatch
from vla.nn.devices import is_cuda

T = TypeVar("T")
AHEAD = ("images", "proprio", "actions")
"""Arrays that are copied ahead. The indices stay, since shapes are computed of them."""


class Prefetcher(Generic[T]):
    """One item is always being prepared, in a thread, in the order in which they are taken.

    What prepares items has a state (places in streams, a random generator) that a run saves.
    `state` is that before the item which was not taken yet: a run that goes on from there prepares
    the same one again.
    """

    def __init__(self, prepare: Callable[[], T], state: Callable[[], dict[str, Any]]) -> None:
        self._prepare, self._state = prepare, state
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._next: Future[T] | None = None
        self._before: dict[str, Any] = {}

    def take(self) -> T:
        """Return the next item; raise what preparing it raised."""
        item = self._prepare() if self._next is None else self._next.result()
        self._before = self._state()
        self._next = self._thread.submit(self._prepare)
        return item

    def state(self) -> dict[str, Any]:
        """Return the state before the next item."""
        return self._state() if self._next is None else self._before

    def drop(self) -> None:
        """Forget the item that was prepared; call it before the state is set."""
        if self._next is not None:
            self._next.exception()  # waits
            self._next = None


def to_device(batch: EpisodeBatch, device: torch.device | str) -> EpisodeBatch:
    """Return a batch with its large arrays on a device; to a GPU they are copied asynchronously."""

    def moved(values: Any) -> Tensor:
        tensor = torch.as_tensor(values)
        if tensor.device.type != "cpu" or not is_cuda(device):
            return tensor.to(device)
        return tensor.pin_memory().to(device, non_blocking=True)

    changed: dict[str, Any] = {name: moved(getattr(batch, name)) for name in AHEAD}
    if batch.features is not None:
        changed["features"] = {name: moved(values) for name, values in batch.features.items()}
    return replace(batch, **changed)
