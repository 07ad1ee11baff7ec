"""Diagnostics of online RL: metrics of every iteration, their bounds, and what to do beyond them.

They only warn: an iteration continues whatever is out of bounds. Diagnostics of the networks are in
`policy_diagnostics`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

DORMANT_THRESHOLD = 0.025
"""Share of its layer's mean activity below which a unit is dormant (Sokar et al. 2023)."""
WINDOW = 100
"""Updates with which the gradient of a new one is compared."""
MIN_UPDATES = 20
"""Updates before the comparison begins."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Bound of a diagnostic, and what an alarm says."""

    limit: float
    """The last value without an alarm."""
    is_lower: bool
    """Whether values below the limit are out of bounds, not those above it."""
    description: str
    """What the diagnostic measures."""
    advice: str
    """What to do."""

    def exceeded(self, value: float) -> bool:
        """Return whether a value is out of bounds; NaN is."""
        return not (value >= self.limit if self.is_lower else value <= self.limit)


BOUNDS: dict[str, Bound] = {
    "diagnostics/action_std": Bound(
        limit=0.005, is_lower=True,
        description="standard deviation of chunks sampled at one state, in normalised action units",
        advice="the policy has stopped exploring: go back to an earlier checkpoint and lower "
        "--optimizer.lr",
    ),
    "diagnostics/return_std": Bound(
        limit=0.01, is_lower=True, description="standard deviation of the iteration's returns",
        advice="all returns are alike and there is nothing to learn from: raise "
        "--episodes-per-iteration, begin some in the middle (--jump-start.fraction 0.5), or see "
        "what `vla eval --pass-at 8` says",
    ),
    "diagnostics/grad_norm_ratio": Bound(
        limit=10.0, is_lower=False,
        description="largest gradient norm of the iteration over the median of those before",
        advice="lower --optimizer.lr or --optimizer.grad-clip-norm if success falls after it",
    ),
    "diagnostics/dormant_frac": Bound(
        limit=0.25, is_lower=False, description="share of the head's units that are dormant",
        advice="the head is losing what it can learn with: start again from an earlier checkpoint "
        "and lower --optimizer.lr",
    ),
    "diagnostics/staleness": Bound(
        limit=10.0, is_lower=False, description="mean age of the samples, in iterations",
        advice="most samples are of much older policies: raise --episodes-per-iteration, or start "
        "a new run from this policy",
    ),
    "diagnostics/kl": Bound(
        limit=0.5, is_lower=False,
        description="KL divergence from the start policy, in nats per number and transition",
        advice="transitions have moved by more than their own noise: lower --optimizer.lr, or hold "
        "the policy with more weight on the BC loss",
    ),
}  # fmt: skip
"""By metric. Policies cloned from 20 demonstrations of `pick_place` begin with an action_std of
0.017 to 0.020, and online RL improves them; one that acts alike whatever the noise has 0.002. Of a
Gaussian transition, 0.5 nats are a shift of its mean by one deviation."""


def with_limits(**limits: float) -> dict[str, Bound]:
    """Return the bounds of an algorithm with other limits, by diagnostic."""
    changed = {f"diagnostics/{name}": limit for name, limit in limits.items()}
    return {n: replace(b, limit=changed.get(n, b.limit)) for n, b in BOUNDS.items()}


def out_of_bounds(metrics: Mapping[str, float], bounds: Mapping[str, Bound]) -> list[str]:
    """Return the names of metrics that are out of bounds."""
    return [name for name in bounds if name in metrics and bounds[name].exceeded(metrics[name])]


def warning(name: str, value: float, bound: Bound) -> str:
    """Return the sentence of an alarm."""
    expected = "at least" if bound.is_lower else "at most"
    return f"{name} is {value:.3g}, expected {expected} {bound.limit:g}: {advice(name)}"


def advice(name: str) -> str:
    """Return what a diagnostic measures and what to do when it is out of bounds."""
    return f"{BOUNDS[name].description}; {BOUNDS[name].advice}"


def action_std(chunks: np.ndarray) -> float:
    """Return the deviation of G chunks sampled at each of M states, f32 [m, g, h, u], over G.

    Of a Gaussian it is the entropy per number but for a logarithm and a constant.
    """
    return float(np.sqrt(chunks.var(1).mean()))


def dormant_frac(activity: Sequence[np.ndarray]) -> float:
    """Return the share of units that are dormant (Sokar et al. 2023, eq. 1), given the mean
    absolute activity of the units of every layer, f32 [units].
    """
    dormant = [layer <= DORMANT_THRESHOLD * layer.mean() for layer in activity]
    return float(np.concatenate(dormant).mean())


def grad_norm_ratio(norms: Sequence[float]) -> float:
    """Return the last gradient norm over the median of those before; 1 while they are few."""
    before = norms[:-1]
    if len(before) < MIN_UPDATES:
        return 1.0
    return float(norms[-1] / max(float(np.median(before)), 1e-12))


class TrainingDiagnostics:
    """Diagnostics that are counted from update to update, `updates` in every iteration."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.norms: list[float] = []
        self.begin_iteration()

    def begin_iteration(self) -> None:
        """Begin an iteration."""
        self.worst, self.ages, self.drawn = 1.0, 0, 0

    def add_samples(self, ages: Sequence[int]) -> None:
        """Count samples by how many updates ago they were collected."""
        self.ages += sum(ages)
        self.drawn += len(ages)

    def add_update(self, norm: float) -> None:
        """Count an update by the norm of its gradient."""
        self.norms = [*self.norms, norm][-WINDOW - 1 :]
        self.worst = max(self.worst, grad_norm_ratio(self.norms))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the iteration so far."""
        age = self.ages / self.drawn / self.updates if self.drawn else 0.0
        return {"diagnostics/grad_norm_ratio": self.worst, "diagnostics/staleness": age}

    def state(self) -> dict[str, Any]:
        """Return all of it as JSON types."""
        return {"norms": self.norms, "worst": self.worst, "ages": self.ages, "drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.norms, self.worst = state["norms"], state["worst"]
        self.ages, self.drawn = state["ages"], state["drawn"]
