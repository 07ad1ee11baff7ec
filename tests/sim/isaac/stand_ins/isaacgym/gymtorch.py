"""Descriptors of tensors to tensors of torch and back."""

from typing import Any

from isaacgym import gymapi


def wrap_tensor(gym_tensor: Any) -> Any:
    if not isinstance(gym_tensor, gymapi.Tensor):
        raise TypeError(f"wrap_tensor: got {type(gym_tensor).__name__}, expected gymapi.Tensor")
    return gym_tensor.held


def unwrap_tensor(torch_tensor: Any) -> Any:
    if not torch_tensor.is_contiguous():
        raise ValueError("unwrap_tensor: the tensor is not contiguous")
    return gymapi.Tensor(torch_tensor)
