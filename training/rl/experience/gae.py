"""Returns and generalised advantage estimates, one whole episode at a time."""

import numpy as np


def advantages(
    reward: np.ndarray, value: np.ndarray, *, terminated: bool, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Return generalised advantage estimates f32 [t] (Schulman et al. 2016, eq. 16).

    Args:
        reward: f32 [t].
        value: f32 [t + 1], the last one of the observation after the last decision, before any
            reset: an episode that was cut by the time limit is continued by it.
        terminated: Whether the episode ended by the task's rules; its last value then counts as 0.
        gamma: Discount per decision.
        gae_lambda: 0 trusts the values, 1 the rewards.
    """
    after = value[1:].astype(np.float64)
    if terminated:
        after[-1] = 0.0
    error = reward + gamma * after - value[:-1]
    return discounted(error, gamma * gae_lambda).astype(np.float32)


def discounted(reward: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sum f64 [t] of the rewards from each decision on."""
    total, carried = np.zeros(len(reward)), 0.0
    for t in range(len(reward) - 1, -1, -1):
        carried = reward[t] + gamma * carried
        total[t] = carried
    return total
