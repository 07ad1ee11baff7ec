"""pass@k of a policy: how often at least one of k tries from the same start state succeeds.

Told before practice it says whether practice can help: reward can make usual what happens
sometimes, and nothing else. Tries are drawn as in practice, with noise at every transition.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from training.evaluate import evaluate
from vla import statistics
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.policies.vla import VLAPolicy

ROUNDS = 2000
"""Rounds of the bootstrap."""
LITTLE = 0.05
"""Share of start states that practice needs, at the least, to have something to learn from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tries:
    """K tries from each of N start states."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    """Seed of the start states."""
    success: Bool[np.ndarray, "n k"]
    """Whether each try succeeded."""

    @property
    def k(self) -> int:
        """Tries per start state."""
        return self.success.shape[1]

    def rate(self, k: int) -> float:
        """Return pass@k."""
        return float(solved(self.success, k).mean())

    def interval(self, k: int) -> tuple[float, float]:
        """Return its 95 % interval."""
        return interval(solved(self.success, k))

    def lines(self) -> list[str]:
        """Return pass@1 to pass@k for people, and what they mean."""
        told = [
            f"pass@{k}: {self.rate(k):.1%} (95 % interval {low:.1%} to {high:.1%})"
            for k in range(1, self.k + 1)
            for low, high in [self.interval(k)]
        ]
        return [*told, self.sentence()]

    def sentence(self) -> str:
        """Return what the figures mean."""
        one, most, n = self.rate(1), self.rate(self.k), len(self.success)
        begin = (
            f"{self.task['type']}: one try succeeds in {one:.1%}, and at least one of {self.k} "
            f"in {most:.1%} of {n} start states, seed {self.seed}"
        )
        if most < LITTLE:
            return (
                f"{begin}; practice has nothing to reinforce: clone more demonstrations first, or "
                "practise with help"
            )
        if most - one < LITTLE:
            return f"{begin}; tries end alike, so practice has little to choose among"
        return f"{begin}; practice can make usual what happens sometimes, {most - one:.1%} more"

    def to_json(self) -> dict[str, Any]:
        """Return everything, with rates and intervals, as JSON types."""
        ks = range(1, self.k + 1)
        return {
            "task": self.task, "seed": self.seed, "success": self.success.tolist(),
            "pass_at": [self.rate(k) for k in ks], "intervals": [self.interval(k) for k in ks],
        }  # fmt: skip


def solved(success: Bool[np.ndarray, "n t"], k: int) -> Float64[np.ndarray, " n"]:
    """Return, for each of n start states, how often one of k tries drawn from t succeeds.

    1 - C(t - c, k) / C(t, k) for c successes, which is unbiased (Chen et al. 2021, eq. 1).

    Raises:
        ValueError: more tries wanted than there are, or none.
    """
    tries = success.shape[1]
    if not 1 <= k <= tries:
        raise ValueError(f"pass@k: got k = {k}, expected 1 to {tries}, the tries per start state")
    return np.array(
        [1 - math.comb(tries - int(c), k) / math.comb(tries, k) for c in success.sum(1)]
    )


def interval(shares: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over start states: percentiles of the bootstrap.

    Where all are 0 or all 1 the bootstrap sees no doubt at all, and it is Wilson's.
    """
    if shares.min() == shares.max() and shares[0] in (0.0, 1.0):
        return statistics.wilson(round(shares.sum()), len(shares))
    rng = np.random.default_rng(0)
    means = shares[rng.integers(len(shares), size=(ROUNDS, len(shares)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def run(
    policy: VLAPolicy, task: PluginConfig, *, k: int, episodes: int, seed: int, quiet: bool = True
) -> Tries:
    """Try k times from the start states of episodes 0 to `episodes` - 1 of `seed`.

    Args:
        policy: In evaluation mode.
        task: Configuration of the task.
        k: Tries per start state.
        episodes: Start states.
        seed: Of the episodes; the noise of each try is its own.
        quiet: Show no progress bars.
    """
    found = [
        evaluate(policy, task, episodes=episodes, seed=seed, attempt=number, quiet=quiet).success
        for number in range(1, k + 1)
    ]
    return Tries(task=configs.to_json(task), seed=seed, success=np.array(found).T)
