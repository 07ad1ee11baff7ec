"""Sharding of weights over processes with `fully_shard` of PyTorch (FSDP2), and back."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vla.nn.devices import is_cuda


def shard(loss: nn.Module, device: str, size: int) -> None:
    """Shard every parameter of a module over `size` processes; all hold the same full module.

    Layers are gathered one by one when they are needed, the rest once per pass.
    """
    mesh = init_device_mesh(device, (size,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if is_cuda(device) else MixedPrecisionPolicy()
    for layer in layers(loss):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(loss, mesh=mesh, mp_policy=policy)


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost members, with parameters, of lists of modules.

    Lists with the attribute `driven` are left out: the parts of their members are called directly.
    """
    for child in module.children():
        if getattr(child, "driven", False):
            continue
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from layers(child)


def full_tensor(value: Tensor) -> Tensor:
    """Return the unsharded tensor; a collective operation if it is sharded."""
    if not isinstance(value, DTensor):
        return value
    full: Tensor = value.full_tensor()
    return full


def shard_like(value: Tensor, model: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, distributed as `model` is."""
    if not isinstance(model, DTensor):
        return value
    here = value.to(model.device)
    return distribute_tensor(here, model.device_mesh, model.placements, src_data_rank=None)
