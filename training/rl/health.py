"""Is practice still teaching? Figures of every round that say so, their bounds, and what to do.

Nothing here acts on what it finds: a round goes on whatever sounds. How the figures of a network
are taken is in `probe`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

DORMANT = 0.025
"""Share of its layer's mean activity below which a unit is dormant (Sokar et al. 2023)."""
WINDOW = 100
"""Updates whose gradients a new one is held against."""
FEWEST = 20
"""Updates before which it is not."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Where an alarm begins to sound, and its words."""

    limit: float
    """The last value at which it is silent."""
    low: bool
    """Whether it sounds below the limit, not above it."""
    words: str
    """What the figure is, for people."""
    advice: str
    """What to do."""

    def sounds(self, value: float) -> bool:
        """Whether a value is beyond the limit; what is not a number is."""
        return not (value >= self.limit if self.low else value <= self.limit)


BOUNDS: dict[str, Bound] = {
    "health/spread": Bound(
        limit=0.005, low=True,
        words="deviation of chunks drawn at one state, in normalised action units",
        advice="the policy has stopped exploring: go back to an earlier checkpoint and lower "
        "--optimiser.lr",
    ),
    "health/return_std": Bound(
        limit=0.01, low=True, words="deviation of what the round's episodes earned",
        advice="all earned alike and there is nothing to learn from: practise more --episodes, "
        "begin some in the middle (--help.led 0.5), or see what `vla eval --pass-at 8` says",
    ),
    "health/gradient": Bound(
        limit=10.0, low=False,
        words="largest gradient of the round, as a multiple of the median of those before",
        advice="lower --optimiser.lr or --optimiser.clip if success falls after it",
    ),
    "health/dormant": Bound(
        limit=0.25, low=False, words="share of the head's units that are dormant",
        advice="the head is losing what it can learn with: start again from an earlier checkpoint "
        "and lower --optimiser.lr",
    ),
    "health/staleness": Bound(
        limit=10.0, low=False, words="mean age of what is learned from, in rounds",
        advice="most of it is of policies long gone: practise more --episodes per round, or go on "
        "from this policy in a new run",
    ),
    "health/kl": Bound(
        limit=0.5, low=False,
        words="divergence from the start policy, in nats per number and transition",
        advice="transitions have moved by their own noise and more: lower --optimiser.lr, or hold "
        "the policy with more cloning",
    ),
}  # fmt: skip
"""By figure. Policies cloned from 20 demonstrations of `pick_place` begin with a spread of 0.017 to
0.020, and practice lifts them; one that acts alike whatever is drawn has 0.002. Of a
Gaussian transition, 0.5 nats are a shift of its mean by one deviation."""


def with_limits(**limits: float) -> dict[str, Bound]:
    """Return the bounds of an algorithm to which other limits apply, by figure."""
    changed = {f"health/{name}": limit for name, limit in limits.items()}
    return {n: replace(b, limit=changed.get(n, b.limit)) for n, b in BOUNDS.items()}


def sounding(figures: Mapping[str, float], bounds: Mapping[str, Bound]) -> list[str]:
    """Return the names of figures that are beyond their bounds."""
    return [name for name in bounds if name in figures and bounds[name].sounds(figures[name])]


def line(name: str, value: float, bound: Bound) -> str:
    """Return what to tell people of a figure beyond its bound."""
    least = "at least" if bound.low else "at most"
    return f"{name} is {value:.3g}, expected {least} {bound.limit:g}: {advice(name)}"


def advice(name: str) -> str:
    """Return what a figure is and what to do where its alarm has sounded."""
    return f"{BOUNDS[name].words}; {BOUNDS[name].advice}"


def spread(chunks: np.ndarray) -> float:
    """Return the deviation of G chunks drawn at each of M states, f32 [m, g, h, u], over G.

    Of a Gaussian it is the entropy per number but for a logarithm and a constant.
    """
    return float(np.sqrt(chunks.var(1).mean()))


def dormant(activity: Sequence[np.ndarray]) -> float:
    """Return the share of units that are dormant (Sokar et al. 2023, eq. 1).

    Args:
        activity: Mean absolute activity of the units of every layer, f32 [units].
    """
    silent = [layer <= DORMANT * layer.mean() for layer in activity]
    return float(np.concatenate(silent).mean())


def spike(norms: Sequence[float]) -> float:
    """Return the last norm of a gradient as a multiple of the median of those before it.

    1 as long as there are too few to tell.
    """
    before = norms[:-1]
    if len(before) < FEWEST:
        return 1.0
    return float(norms[-1] / max(float(np.median(before)), 1e-12))


class Vitals:
    """What is counted from update to update.

    Args:
        updates: In every round.
    """

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.norms: list[float] = []
        self.begin_()

    def begin_(self) -> None:
        """Begin a round."""
        self.worst, self.ages, self.drawn = 1.0, 0, 0

    def draw_(self, ages: Sequence[int]) -> None:
        """Count samples that are learned from, by how many updates ago they were practised."""
        self.ages += sum(ages)
        self.drawn += len(ages)

    def step_(self, norm: float) -> None:
        """Count an update by the norm of its gradient."""
        self.norms = [*self.norms, norm][-WINDOW - 1 :]
        self.worst = max(self.worst, spike(self.norms))

    def figures(self) -> dict[str, float]:
        """Return the figures of the round so far."""
        age = self.ages / self.drawn / self.updates if self.drawn else 0.0
        return {"health/gradient": self.worst, "health/staleness": age}

    def state(self) -> dict[str, Any]:
        """Return all of it as JSON types."""
        return {"norms": self.norms, "worst": self.worst, "ages": self.ages, "drawn": self.drawn}

    def restore_(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.norms, self.worst = state["norms"], state["worst"]
        self.ages, self.drawn = state["ages"], state["drawn"]
