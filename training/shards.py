"""Weights in shards over processes, as `fully_shard` of PyTorch keeps them: in, whole again, back.

What they are computed with is the business of `training.team`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard_(loss: nn.Module, device: str, size: int) -> None:
    """Leave each of `size` processes its share of every parameter of a module, which is whole in
    all of them; layers come together one by one as they are needed, the rest for a whole pass.
    """
    mesh = init_device_mesh(device, (size,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if device == "cuda" else MixedPrecisionPolicy()
    for layer in layers(loss):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(loss, mesh=mesh, mp_policy=policy)


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost members of lists of modules that have parameters: what is called as one
    and is one of many. A list that is `driven` has members whose parts are called without them.
    """
    for child in module.children():
        if getattr(child, "driven", False):
            continue
        if isinstance(child, nn.ModuleList):
            yield from (one for one in child if any(True for _ in one.parameters()))
        else:
            yield from layers(child)


def whole(value: Tensor) -> Tensor:
    """Return a tensor that is all here; where it is in shards, every process has to ask for it."""
    if not isinstance(value, DTensor):
        return value
    full: Tensor = value.full_tensor()
    return full


def placed(value: Tensor, model: Tensor) -> Tensor:
    """Return of a tensor that is whole in every process what `model` holds of its own."""
    if not isinstance(model, DTensor):
        return value
    here = value.to(model.device)
    return distribute_tensor(here, model.device_mesh, model.placements, src_data_rank=None)
