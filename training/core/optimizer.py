"""AdamW with warm-up, cosine decay, gradient clipping and an average of the weights (EMA)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.core import fsdp
from vla.contracts.config import validate_min

VALUE_NET = "value_net."
"""Prefix of the parameters of value networks, which are trained next to a policy."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of AdamW and its schedule."""

    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    warmup_steps: int = 100
    """Updates over which the learning rate rises linearly from 0."""
    min_lr_ratio: float = 0.02
    """Final learning rate relative to `lr` (cosine decay in between)."""
    grad_clip_norm: float = 1.0
    """Largest norm of the gradient."""
    value_lr_multiplier: float = 10.0
    """Learning rate of value networks relative to `lr`."""
    ema_decay: float = 0.995
    """Decay of the exponential moving average of the weights, which evaluation and checkpoints
    use; rises from 0 over the first updates."""

    def __post_init__(self) -> None:
        validate_min(
            self, lr=0, weight_decay=0, warmup_steps=0, min_lr_ratio=0, grad_clip_norm=0,
            ema_decay=0, value_lr_multiplier=0,
        )  # fmt: skip


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Return the learning rate of update `step` (from 0) of `steps`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    low = config.min_lr_ratio
    return config.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


class Optimizer:
    """Updates the weights of a module and their average; its state is tensors and a counter.

    Args:
        config: Settings.
        module: The network; its parameters with `requires_grad` are trained.
        steps: Updates in all.
        others: Optimizers of further parameters of the module by name; their state is saved and
            restored as well.
    """

    def __init__(
        self, config: OptimizerConfig, module: nn.Module, steps: int,
        others: Mapping[str, torch.optim.Optimizer] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.module, self.steps, self.count = config, module, steps, 0
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        groups = []
        for is_value in (False, True):
            members = [p for name, p in named if name.startswith(VALUE_NET) == is_value]
            factor = config.value_lr_multiplier if is_value else 1.0
            parts = (([p for p in members if p.dim() >= 2], config.weight_decay),
                     ([p for p in members if p.dim() < 2], 0.0))  # fmt: skip
            groups += [
                {"params": part, "weight_decay": decay, "factor": factor}
                for part, decay in parts
                if part
            ]
        self.adam = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)
        self.saved: dict[str, torch.optim.Optimizer] = {"adam": self.adam}
        self.saved |= {f"{name}_adam": other for name, other in (others or {}).items()}
        self.average = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def step(self, loss: Tensor) -> dict[str, float]:
        """Make one update on `loss` and return gradient norm and learning rate.

        Raises:
            ValueError: the gradient is not finite; the weights are unchanged.
        """
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        total_norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.config.grad_clip_norm)
        norm = float(fsdp.full_tensor(total_norm))
        if not math.isfinite(norm):
            raise ValueError(
                f"the gradient of update {self.count} has norm {norm}; lower optimizer.lr"
            )
        rate = learning_rate(self.config, self.count, self.steps)
        for group in self.adam.param_groups:
            group["lr"] = rate * group["factor"]
        self.adam.step()
        self.count += 1
        self._average()
        return {"grad_norm": norm, "lr": rate}

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.config.ema_decay, self.count / (self.count + 10))
        for name, value in self.module.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return all state except the counter, by name; sharded if the weights are."""
        tensors = {f"average.{name}": value for name, value in self.average.items()}
        tensors |= {f"weight.{name}": value for name, value in self.module.state_dict().items()}
        for prefix, adam in self.saved.items():
            for index, state in adam.state_dict()["state"].items():
                tensors |= {f"{prefix}.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
        return tensors

    def load(self, tensors: dict[str, Tensor], count: int) -> None:
        """Restore the unsharded tensors that `tensors` returned after `count` updates."""
        self.count = count
        for name in self.average:
            average = self.average[name]
            average.copy_(fsdp.shard_like(tensors[f"average.{name}"], average))
        weights = {
            k.removeprefix("weight."): v for k, v in tensors.items() if k.startswith("weight.")
        }
        self.module.load_state_dict(
            {name: fsdp.shard_like(v, self.average.get(name, v)) for name, v in weights.items()}
        )
        for prefix, adam in self.saved.items():
            parameters = [p for group in adam.param_groups for p in group["params"]]
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"{prefix}."):
                    _, index, key = name.split(".")
                    shard = (
                        value if key == "step" else fsdp.shard_like(value, parameters[int(index)])
                    )
                    state.setdefault(int(index), {})[key] = shard
            adam.load_state_dict({**adam.state_dict(), "state": state})
