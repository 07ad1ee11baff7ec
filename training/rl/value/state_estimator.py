"""Estimates the simulator's state from a policy's features, for a value function without it."""

import math
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

FILE = "state_estimator.safetensors"
"""Name of a saved estimate, next to the checkpoint of the policy whose features it reads."""

BATCH = 256
DROPOUT = 0.1
RIDGE = 1e-3
MAX_DEVIATIONS = 5.0
"""Bound of standardised numbers: a body that fell off the table must not outweigh the others."""


class Standardizer(nn.Module):
    """Maps numbers f32 [n, d] to (x - mean) / deviation, clamped; mean and deviation are fitted."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, values: Tensor) -> None:
        """Take mean and deviation from values f32 [n, d]."""
        self.mean.copy_(values.mean(0))
        self.std.copy_(values.std(0, correction=0).clamp(min=1e-3))

    def forward(self, values: Tensor) -> Tensor:
        """Return standardised values."""
        return ((values - self.mean) / self.std).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)


class StateEstimator(nn.Module):
    """Ridge regression from features f32 [n, d] to P numbers of the simulator's state, and a
    perceptron for what is left: joint positions are a linear part of the features.

    It is fitted to rollouts of which the state is known; from then on no simulator is needed.
    """

    linear: Tensor

    def __init__(self, features: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.inputs, self.outputs = Standardizer(features), Standardizer(size)
        self.enter = nn.Sequential(nn.Linear(features, 512), nn.SiLU())
        self.leave = nn.Sequential(nn.Linear(512, 256), nn.SiLU(), nn.Linear(256, size))
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            else:
                nn.init.zeros_(weight)
        self.requires_grad_(requires_grad=False)
        self.register_buffer("linear", torch.zeros(features, size))

    def fit(self, features: Tensor, state: Tensor, steps: int, generator: torch.Generator) -> None:
        """Fit the state f32 [n, p] of features f32 [n, d]: squares, then smooth L1 of standardised
        numbers; the scale of both is that of the first call.
        """
        if not self.linear.any():
            self.inputs.fit(features)
            self.outputs.fit(state)
        x, y = self.inputs(features), self.outputs(state)
        penalty = RIDGE * len(x) * torch.eye(x.shape[1], device=x.device)
        self.linear.copy_(torch.linalg.solve(x.T @ x + penalty, x.T @ y))
        y = y - x @ self.linear
        weights = list(self.parameters())
        for weight in weights:
            weight.requires_grad_()
        adam = torch.optim.AdamW(weights, lr=1e-3, weight_decay=1e-2, fused=True)
        with torch.enable_grad():
            for step in range(steps):
                adam.param_groups[0]["lr"] = 1e-5 + 5e-4 * (1 + math.cos(math.pi * step / steps))
                rows = torch.randint(len(x), (BATCH,), generator=generator).to(x.device)
                adam.zero_grad()
                hidden = self.enter(x[rows])
                kept = torch.rand(hidden.shape, generator=generator).to(x.device) >= DROPOUT
                guess = self.leave(hidden * kept / (1 - DROPOUT))
                error = nn.functional.smooth_l1_loss(guess, y[rows], beta=0.2)
                error.backward()
                adam.step()
        adam.zero_grad()  # what is left would count as part of the policy's gradient
        self.requires_grad_(requires_grad=False)

    def error(self, features: Tensor, state: Tensor) -> Tensor:
        """Return the root mean square error of all numbers f32 [n, p], in standard deviations."""
        off = self.outputs(self(features)) - self.outputs(state)
        return off.square().mean().sqrt()

    def save(self, path: Path) -> None:
        """Write the weights as safetensors."""
        weights = {n: t.cpu().contiguous() for n, t in self.state_dict().items()}
        safetensors.torch.save_file(weights, path)

    @classmethod
    def load(cls, path: Path) -> "StateEstimator":
        """Read what `save` wrote.

        Raises:
            ValueError: there is none, or it is damaged.
        """
        try:
            weights = safetensors.torch.load_file(path)
            features, size = weights["linear"].shape
            estimator = cls(features, size, torch.Generator())
            estimator.load_state_dict(weights)
            if not estimator.linear.any():
                raise ValueError("it was never fitted")
        except (OSError, LookupError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{path}: got no estimate of the state that can be read ({error}); expected what a "
                "run of asymmetric_ac with --algo.value.state estimated saves"
            ) from error
        return estimator

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Return the estimated state f32 [n, p]."""
        x = self.inputs(features)
        return (x @ self.linear + self.leave(self.enter(x))) * self.outputs.std + self.outputs.mean
