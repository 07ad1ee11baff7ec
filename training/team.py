"""Processes that train one policy together, as `torchrun` starts them: shares, sums, agreement.

Every process draws the same batches and the same noise, and works on its share; gradients are
summed, so that an update is that of one process. The first one evaluates, writes and speaks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training import shards
from vla.nn.norms import Standardize

PATIENCE = timedelta(days=30)
"""How long processes wait for the one that evaluates; one that has died is noticed at once."""
LOST = ("gloo", "nccl", "connection", "peer", "socket", "store")
"""Words of which one is in what PyTorch says where a process of the group is gone."""
Parallel = Literal["ddp", "fsdp"]
"""Whether every process holds all weights, or a share of them."""


class Part(NamedTuple):
    """Which rows of a batch are whose."""

    rank: int
    size: int

    def range(self, rows: int) -> tuple[int, int]:
        """Return the first row and the end of this process's share of `rows`; it may be empty."""
        return self.rank * rows // self.size, (self.rank + 1) * rows // self.size


WHOLE = Part(0, 1)
"""All of a batch."""


@dataclass(frozen=True)
class Team:
    """This process among those that train together."""

    part: Part = WHOLE
    """Its share."""
    control: Any = None
    """Group in which they agree; on the CPU, whatever trains where."""
    device: str = "cpu"
    """Where they train."""
    parallel: Parallel = "ddp"
    """Who holds which weights."""

    @property
    def together(self) -> bool:
        """Whether there are others."""
        return self.part.size > 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that evaluates, writes and speaks."""
        return self.part.rank == 0

    def summed(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sum of each value over all processes."""
        if not self.together:
            return values
        numbers = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(numbers, group=self.control)
        return dict(zip(values, numbers.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return self.summed({"": float(flag)})[""] > 0

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors, where they were in shards on the CPU; nothing in a process that
        neither evaluates nor writes. All have to ask for them.
        """
        if not self.together:
            return tensors
        found = {}
        for name, value in tensors.items():
            full = shards.whole(value)
            if self.leads:
                found[name] = full if full is value else full.cpu()
        return found

    def wait(self) -> None:
        """Return when all processes are here."""
        self.any(False)

    def wrapped(self, loss: nn.Module) -> nn.Module:
        """Return a module that computes a loss, whose gradients are the mean of all processes'."""
        for module in loss.modules():
            if isinstance(module, Standardize):
                # A group of its own: gradients travel meanwhile, in another order on each process.
                module.group = dist.new_group(timeout=PATIENCE)
        if self.parallel == "fsdp":
            shards.shard_(loss, self.device, self.part.size)
            return loss
        return nn.parallel.DistributedDataParallel(
            loss, broadcast_buffers=False, find_unused_parameters=True
        )


ALONE = Team()
"""One process, and no other."""


@contextmanager
def joined(device: str, parallel: Parallel = "ddp") -> Iterator[Team]:
    """Join the processes that `torchrun` started beside this one, if it did.

    Args:
        device: Where they train; each on a GPU of its own.
        parallel: Whether each holds all weights, or a share of them.

    Raises:
        ValueError: one of them ended on the way, there are too few GPUs, or weights are to be
            shared out and there is but one process.
    """
    size, rank = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if size == 1:
        if parallel == "fsdp":
            raise ValueError(
                "parallel: got fsdp with one process, expected two or more to share the weights "
                "out to; start it by torchrun --nproc-per-node 2 -m vla.cli train"
            )
        yield ALONE
        return
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"device: {torch.cuda.device_count()} GPUs for more processes; give torchrun "
                f"--nproc-per-node {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        yield Team(Part(rank, size), control, device, parallel)
    except ValueError as error:
        if rank:  # the first one has mostly met the same, and says it as commands do
            print(f"process {rank}: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        raise
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        raise ValueError(
            f"one of the {size} processes of this run has ended; what it said is above, and the "
            "same command goes on from the last checkpoint"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
