"""AdamW with warm-up and cosine decay, gradient clipping and an exponential average of weights."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training import shards
from vla.contracts.config import check_least

BESIDE = "beside."
"""Prefix of parameters that are learned beside a policy."""


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """Settings of the optimiser."""

    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    warmup: int = 100
    """Updates over which the learning rate rises from 0."""
    final_share: float = 0.02
    """Learning rate at the end, as a share of the peak (cosine in between)."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    beside: float = 10.0
    """Learning rate of what is learned beside a policy (value baselines), times `lr`."""
    ema: float = 0.995
    """Decay of the averaged weights, which evaluation and the checkpoint use; rises from 0."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, lr=0, weight_decay=0, warmup=0, final_share=0, clip=0, ema=0, beside=0)


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """Return the learning rate of update `step` (from 0) of `steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    share = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
    low = config.final_share
    return config.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * share)))


class Optimiser:
    """Steps a module's weights and keeps their average; its state is tensors and one counter."""

    def __init__(self, config: OptimiserConfig, module: nn.Module, steps: int) -> None:
        self.config, self.module, self.steps, self.count = config, module, steps, 0
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        groups = []
        for beside in (False, True):
            own = [p for name, p in named if name.startswith(BESIDE) == beside]
            factor = config.beside if beside else 1.0
            parts = (([p for p in own if p.dim() >= 2], config.weight_decay),
                     ([p for p in own if p.dim() < 2], 0.0))  # fmt: skip
            groups += [
                {"params": part, "weight_decay": decay, "factor": factor}
                for part, decay in parts
                if part
            ]
        self.adam = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)
        self.average = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def step_(self, loss: Tensor) -> dict[str, float]:
        """Descend `loss` once; returns gradient norm and learning rate.

        Raises:
            ValueError: the gradient is not finite; weights are left as they were.
        """
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        length = nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip)
        norm = float(shards.whole(length))
        if not math.isfinite(norm):
            raise ValueError(
                f"the gradient of update {self.count} has norm {norm}; lower optimiser.lr"
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
        decay = min(self.config.ema, self.count / (self.count + 10))
        for name, value in self.module.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything `load_` needs but the counter, by name; in shards where weights are."""
        found = {f"average.{name}": value for name, value in self.average.items()}
        found |= {f"weight.{name}": value for name, value in self.module.state_dict().items()}
        for index, state in self.adam.state_dict()["state"].items():
            found |= {f"adam.{index}.{key}": torch.as_tensor(value) for key, value in state.items()}
        return found

    def load_(self, tensors: dict[str, Tensor], count: int) -> None:
        """Restore what `tensors` returned after `count` updates, of weights that were whole."""
        self.count = count
        for name in self.average:
            mine = self.average[name]
            mine.copy_(shards.placed(tensors[f"average.{name}"], mine))
        weights = {
            k.removeprefix("weight."): v for k, v in tensors.items() if k.startswith("weight.")
        }
        self.module.load_state_dict(
            {name: shards.placed(v, self.average.get(name, v)) for name, v in weights.items()}
        )
        parameters = [p for group in self.adam.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, index, key = name.split(".")
                mine = value if key == "step" else shards.placed(value, parameters[int(index)])
                state.setdefault(int(index), {})[key] = mine
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state})
