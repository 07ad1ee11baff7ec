"""Distributed training of one policy in the processes that `torchrun` starts.

Every process draws the same batches and the same noise and computes its part; gradients are
summed, so an update equals that of a single process. The main process evaluates, writes and prints.
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

from training.core import fsdp
from vla.nn.devices import is_cuda
from vla.nn.norms import Standardize

PATIENCE = timedelta(days=30)
"""How long processes wait for the one that evaluates; a dead process is noticed at once."""
LOST = ("gloo", "nccl", "connection", "peer", "socket", "store")
"""One of these words is in PyTorch's message when a process of the group has ended."""
Parallel = Literal["ddp", "fsdp"]
"""Every process holds all weights (ddp) or a shard of them (fsdp)."""


class Partition(NamedTuple):
    """Which episodes of a batch this process computes."""

    rank: int
    size: int

    def range(self, rows: int) -> tuple[int, int]:
        """Return the first row and the end of this process's part of `rows`; it may be empty."""
        return self.rank * rows // self.size, (self.rank + 1) * rows // self.size


WHOLE = Partition(0, 1)
"""The whole batch."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process within the group of processes that train together."""

    partition: Partition = WHOLE
    """Its rank and the number of processes."""
    control: Any = None
    """Group of PyTorch for control messages; always on the CPU."""
    device: str = "cpu"
    """Device of training."""
    parallel: Parallel = "ddp"
    """How the weights are distributed."""

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.partition.size > 1

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates, writes and prints."""
        return self.partition.rank == 0

    def all_reduce_sum(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sum of each value over all processes."""
        if not self.is_distributed:
            return values
        numbers = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(numbers, group=self.control)
        return dict(zip(values, numbers.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return self.all_reduce_sum({"": float(flag)})[""] > 0

    def full_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return unsharded tensors (those gathered from shards are on the CPU) in the main process,
        none in the others; a collective operation.
        """
        if not self.is_distributed:
            return tensors
        gathered = {}
        for name, value in tensors.items():
            full = fsdp.full_tensor(value)
            if self.is_main:
                gathered[name] = full if full is value else full.cpu()
        return gathered

    def barrier(self) -> None:
        """Wait for all processes."""
        self.any(False)

    def wrap(self, loss: nn.Module) -> nn.Module:
        """Return the loss module with gradients averaged over all processes."""
        for module in loss.modules():
            if isinstance(module, Standardize):
                # A separate group: gradients are reduced meanwhile, in another order per rank.
                module.group = dist.new_group(timeout=PATIENCE)
        if self.parallel == "fsdp":
            fsdp.shard(loss, self.device, self.partition.size)
            return loss
        return nn.parallel.DistributedDataParallel(
            loss, broadcast_buffers=False, find_unused_parameters=True
        )


SINGLE_PROCESS = ProcessGroup()
"""Training without torchrun."""


@contextmanager
def init_group(device: str, parallel: Parallel = "ddp") -> Iterator[ProcessGroup]:
    """Join the processes that `torchrun` started, if it did; on cuda each takes one GPU.

    Raises:
        ValueError: a process ended early, there are too few GPUs, or fsdp has only one process.
    """
    size, rank = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if size == 1:
        if parallel == "fsdp":
            raise ValueError(
                "parallel: got fsdp with one process, expected two or more to shard the weights "
                "over; start it by torchrun --nproc-per-node 2 -m vla.cli train"
            )
        yield SINGLE_PROCESS
        return
    if is_cuda(device):
        if device != "cuda":
            raise ValueError(
                f"device: got {device!r} for several processes, expected 'cuda': each takes a GPU"
            )
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"device: {torch.cuda.device_count()} GPUs for more processes; give torchrun "
                f"--nproc-per-node {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("nccl" if is_cuda(device) else "gloo", timeout=PATIENCE)
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        yield ProcessGroup(Partition(rank, size), control, device, parallel)
    except ValueError as error:
        if rank:  # the main process usually reports the same error
            print(f"process {rank}: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        raise
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        raise ValueError(
            f"one of the {size} processes of this run has ended; its message is above, run the "
            "same command again to resume from the last checkpoint"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
