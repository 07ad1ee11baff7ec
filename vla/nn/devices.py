"""Devices of torch by name."""

import torch


def check_device(device: str) -> None:
    """Raise ValueError unless torch can compute on a device, such as "cpu", "cuda" or "cuda:1"."""
    try:
        usable = float(torch.ones(2, device=device).sum()) == 2
    except (RuntimeError, AssertionError) as error:  # the second by torch without CUDA
        reason = str(error).partition("\n")[0].strip()
        raise ValueError(
            f"device: got {device!r}, on which torch cannot compute here ({reason}); expected "
            "cpu, cuda or another that this machine has; run `vla doctor`"
        ) from error
    assert usable, device


def half_precision(device: str) -> torch.autocast:
    """Return the context of mixed precision in bfloat16, which only CUDA gets."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def is_cuda(device: str) -> bool:
    """Return whether a device is a GPU of CUDA."""
    return torch.device(device).type == "cuda"
