"""pass@k of a policy: how often at least one of k attempts from the same start state succeeds.

It predicts whether online RL can help: reward makes occasional successes more frequent. Attempts
are sampled as in online RL, with noise at every denoising transition.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from training.evaluation.evaluate import evaluate
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.policies.vla import VLAPolicy
from vla.utils import statistics

RESAMPLES = 2000
"""Bootstrap samples."""
MIN_RATE = 0.05
"""Smallest fraction of start states with a success from which online RL can learn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempts:
    """K attempts from each of N start states."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    """Seed of the start states."""
    success: Bool[np.ndarray, "n k"]
    """Whether each attempt succeeded."""

    @property
    def k(self) -> int:
        """Attempts per start state."""
        return self.success.shape[1]

    def rate(self, k: int) -> float:
        """Return pass@k."""
        return float(solved(self.success, k).mean())

    def interval(self, k: int) -> tuple[float, float]:
        """Return the 95 % interval of pass@k."""
        return interval(solved(self.success, k))

    def lines(self) -> list[str]:
        """Return pass@1 to pass@k and their interpretation as text."""
        rates = [
            f"pass@{k}: {self.rate(k):.1%} (95 % interval {low:.1%} to {high:.1%})"
            for k in range(1, self.k + 1)
            for low, high in [self.interval(k)]
        ]
        return [*rates, self.summary()]

    def summary(self) -> str:
        """Return the interpretation as one sentence."""
        one, most, n = self.rate(1), self.rate(self.k), len(self.success)
        begin = (
            f"{self.task['type']}: one attempt succeeds in {one:.1%}, at least one of {self.k} "
            f"in {most:.1%} of {n} start states, seed {self.seed}"
        )
        if most < MIN_RATE:
            return (
                f"{begin}; online RL has no success to reinforce: train on more demonstrations "
                "first, or use interventions"
            )
        if most - one < MIN_RATE:
            return f"{begin}; attempts end alike, so online RL has little to choose from"
        return f"{begin}; online RL can gain up to {most - one:.1%}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields with rates and intervals as JSON types."""
        ks = range(1, self.k + 1)
        return {
            "task": self.task, "seed": self.seed, "success": self.success.tolist(),
            "pass_at": [self.rate(k) for k in ks], "intervals": [self.interval(k) for k in ks],
        }  # fmt: skip


def solved(success: Bool[np.ndarray, "n t"], k: int) -> Float64[np.ndarray, " n"]:
    """Return for each start state how often one of k attempts, drawn from t, succeeds.

    1 - C(t - c, k) / C(t, k) for c successes, which is unbiased (Chen et al. 2021, eq. 1).

    Raises:
        ValueError: k is not in 1 to t.
    """
    attempts = success.shape[1]
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@k: got k = {k}, expected 1 to {attempts}, the attempts per state")
    return np.array(
        [1 - math.comb(attempts - int(c), k) / math.comb(attempts, k) for c in success.sum(1)]
    )


def interval(rates: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over start states: percentiles of the bootstrap.

    If all are 0 or all are 1, where the bootstrap has no width, it is the Wilson interval.
    """
    if rates.min() == rates.max() and rates[0] in (0.0, 1.0):
        return statistics.wilson(round(rates.sum()), len(rates))
    rng = np.random.default_rng(0)
    means = rates[rng.integers(len(rates), size=(RESAMPLES, len(rates)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def run(
    policy: VLAPolicy, task: PluginConfig, *, k: int, episodes: int, seed: int, quiet: bool = True
) -> Attempts:
    """Make k attempts, of different noise, from the start states of episodes 0 to `episodes` - 1 of
    `seed`; other arguments as of `evaluate`.
    """
    success = [
        evaluate(policy, task, episodes=episodes, seed=seed, attempt=number, quiet=quiet).success
        for number in range(1, k + 1)
    ]
    return Attempts(task=configs.to_json(task), seed=seed, success=np.array(success).T)
