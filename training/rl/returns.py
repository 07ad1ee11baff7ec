"""From rewards to returns and advantages, one whole episode at a time; nothing can leak across."""

import numpy as np


def advantages(
    reward: np.ndarray, value: np.ndarray, *, terminated: bool, gamma: float, trace: float
) -> np.ndarray:
    """Return generalised advantage estimates f32 [t] (Schulman et al. 2016, eq. 16).

    Args:
        reward: f32 [t].
        value: f32 [t + 1], the last one of the observation after the last decision, before any
            reset: an episode that was cut by the time limit is continued by it.
        terminated: Whether the episode ended for good; what follows is then worth nothing.
        gamma: Discount per decision.
        trace: Lambda: 0 trusts the values, 1 the rewards.
    """
    after = value[1:].astype(np.float64)
    if terminated:
        after[-1] = 0.0
    error = reward + gamma * after - value[:-1]
    found, carried = np.zeros(len(reward)), 0.0
    for t in range(len(reward) - 1, -1, -1):
        carried = error[t] + gamma * trace * carried
        found[t] = carried
    return found.astype(np.float32)


def discounted(reward: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sum f64 [t] of the rewards from each decision on."""
    total, carried = np.zeros(len(reward)), 0.0
    for t in range(len(reward) - 1, -1, -1):
        carried = reward[t] + gamma * carried
        total[t] = carried
    return total
