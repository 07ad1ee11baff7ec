"""A pretend accelerator: it computes on the CPU and refuses what a GPU refuses.

Its tensors have the device `pretend:0`. An operator on tensors of two devices, a generator or an
index of the CPU, and `.numpy()` raise, so code that runs here has every tensor where it belongs.
Copies by `.to`, `.cpu` and `copy_` and numbers read by `float` or `tolist` are allowed, as on a
GPU. Importing this module registers the device in the process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from training.core.metrics import read_metrics
from training.core.optimizer import Optimizer

NAME = "pretend"
COPIES = ("aten::copy_", "aten::_to_copy")
"""Operators whose tensors may be on two devices."""
MADE = (
    "empty.memory_format", "empty_strided", "copy_", "_to_copy", "arange", "arange.start",
    "arange.start_step", "eye", "eye.m", "linspace", "randperm", "randperm.generator",
)  # fmt: skip
"""Operators that make tensors: the others find `PretendTensor` among their arguments. Those after
the first four would otherwise resize a tensor, whose `PretendTensor` would keep its shape."""


class DeviceMixError(RuntimeError):
    """An operator got something of another device."""


class PretendTensor(Tensor):
    """A tensor of the device around `raw`, a tensor of the CPU."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "PretendTensor":
        """Return a tensor like `raw`, without storage of its own."""
        made: PretendTensor = Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, layout=raw.layout, device=torch.device(NAME, 0),
        )  # type: ignore[attr-defined]  # fmt: skip
        made.raw = raw
        return made

    # Without these two `Module.to` makes new parameters, which optimizers do not know.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name the tensors inside."""
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> "PretendTensor":
        """Return a tensor of what `__tensor_flatten__` named."""
        return PretendTensor(inner["raw"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Compute an operator on the CPU."""
        return compute(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        """Return that of the tensor inside."""
        return f"{NAME}({self.raw!r})"

    def tolist(self) -> Any:
        """Return the numbers, which a GPU allows as well."""
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Raise as on a GPU."""
        raise TypeError(f"can't convert {self.device} tensor to numpy; use Tensor.cpu() first")

    def __array__(self, *_: object, **__: object) -> Any:
        """Raise as on a GPU."""
        return self.numpy()


def compute(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return what an operator computes, as tensors of the device.

    Raises:
        DeviceMixError: it got a tensor or a generator of the CPU.
    """
    name = func.name().partition(".")[0]
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    # A number of the CPU may meet any tensor in PyTorch.
    away = [t for t in tensors if not isinstance(t, PretendTensor) and t.dim()]
    if away and name not in COPIES:
        raise DeviceMixError(f"{name}: got tensors of {NAME} and of the CPU")
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise DeviceMixError(f"{name}: got a generator of the CPU for a tensor of {NAME}")
    wanted = kwargs.get("device")
    inner, options = tree_map(_inner, args), tree_map(_inner, kwargs)
    out = func(*inner, **options)
    assert all(t.shape == t.raw.shape for t in tensors if isinstance(t, PretendTensor)), name
    if name == "aten::_local_scalar_dense" or (
        name == "aten::_to_copy" and wanted is not None and wanted.type == "cpu"
    ):
        return out
    if name == "aten::copy_" and not isinstance(args[0], PretendTensor):
        return args[0]
    out = tree_map(lambda x: PretendTensor(x) if isinstance(x, Tensor) else x, out)
    return return_and_correct_aliasing(func, args, kwargs, out)


def _inner(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.raw
    return torch.device("cpu") if isinstance(value, torch.device) else value


class _Module:
    """What torch asks the module of a device, as `torch.cuda`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, _: int) -> None:
        """The device has no generator: random numbers come from the CPU."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def _register() -> list[torch.library.Library]:
    """Register the device; return what has to live as long as the process."""
    _setup_privateuseone_for_python_backend(NAME, _Module())  # type: ignore[no-untyped-call]
    every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(lambda op, *args, **kwargs: compute(op, args, kwargs), "PrivateUse1")
    for overload in MADE:
        name, _, kind = overload.partition(".")
        some.impl(overload, _kernel(getattr(getattr(torch.ops.aten, name), kind or "default")),
                  "PrivateUse1")  # fmt: skip
    some.impl("gru_cell", _gru_cell, "AutogradPrivateUse1")
    return [every, some]


def _gru_cell(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """Return what `torch.gru_cell` does: a GPU's fused operator does not exist on the CPU."""
    wx, wh, bx, bh = weights
    given, kept = nn.functional.linear(x, wx, bx), nn.functional.linear(h, wh, bh)
    (r, z, n), (hr, hz, hn) = given.chunk(3, 1), kept.chunk(3, 1)
    new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return (h - new) * torch.sigmoid(z + hz) + new


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: compute(op, args, kwargs)


LIBRARIES = _register()


def assert_like_the_cpu(train: Callable[[str], Path], tolerance: float = 1e-6) -> None:
    """Assert that a run, which `train` makes on a device and returns the folder of, has the same
    metrics here as on the CPU, and in its first update the same gradient, to a share of its norm.

    Weights cannot be compared: where a gradient is 0 but for rounding, Adam moves by the sign of
    the rounding.
    """
    first, other = (_metrics_and_gradient(train, device) for device in ("cpu", NAME))
    assert len(first[0]) == len(other[0]) > 0
    for row, same in zip(first[0], other[0], strict=True):
        assert row.keys() == same.keys()
        for name in row.keys() - {"samples_per_s", "seconds", "eval/seconds"}:
            np.testing.assert_allclose(row[name], same[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert first[1].keys() == other[1].keys() != set()
    norm = sum(float(value.square().sum()) for value in first[1].values()) ** 0.5
    for name, value in first[1].items():
        torch.testing.assert_close(
            value / norm, other[1][name] / norm, rtol=0, atol=tolerance, msg=name
        )


def _metrics_and_gradient(
    train: Callable[[str], Path], device: str
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the metrics of a run, and the gradient of its first update by parameter."""
    gradient: dict[str, Tensor] = {}

    def step(self: Optimizer, loss: Tensor) -> dict[str, float]:
        metrics = take_step(self, loss)
        assert all(p.device.type == device for p in self.module.parameters())
        for name, p in self.module.named_parameters() if not gradient else ():
            if p.grad is not None:
                gradient[name] = p.grad.detach().cpu().clone()
        return metrics

    take_step = Optimizer.step
    with mock.patch.object(Optimizer, "step", step):
        folder = train(device)
    return read_metrics(folder), gradient
