"""From progress to reward: potential-based by default, so that loops have no reward."""

import warnings
from typing import Literal

import numpy as np

Kind = Literal["potential", "delta"]
FARMING = (
    "the raw delta as reward pays a policy that loses and regains progress over and over; use "
    "'potential' unless you check for that"
)


def held(potential: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return potentials [t] with NaN replaced by the last valid value, and where they were NaN.

    Without it, changes during abstention would have no reward, and a policy could make the reward
    model abstain whenever it loses progress. NaN before the first valid value stays NaN.
    """
    valid = ~np.isnan(potential)
    last = np.maximum.accumulate(np.where(valid, np.arange(len(potential)), -1))
    return np.where(last >= 0, potential[np.maximum(last, 0)], np.nan), ~valid


def shaped(
    before: np.ndarray,
    after: np.ndarray,
    *,
    gamma: float,
    ended: np.ndarray,
    done_bonus: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return gamma * Phi(s') - Phi(s) plus the terminal term.

    Ng, Harada and Russell 1999: such a term does not change the optimal policy if Phi is 0 where an
    episode ends; so the potential of an end is 0, and its value is the bonus. A step with
    abstention before or after has reward 0.

    Args:
        before: Phi(s), progress in [0, 1], NaN where the reward model abstains.
        after: Phi(s').
        gamma: Discount per step.
        ended: True where s' ends the episode for good (not by the time limit).
        done_bonus: Reward of the end: usually 1 for success.
    """
    potential = np.where(ended, 0.0, after)
    step = gamma * potential - before
    abstained = np.isnan(before) | np.isnan(after)
    return np.where(abstained, 0.0, step) + np.where(ended, done_bonus, 0.0)


def raw_delta(delta: np.ndarray) -> np.ndarray:
    """Return the signed share of remaining work as reward; 0 for abstained steps.

    Warns:
        UserWarning: it can be farmed.
    """
    warnings.warn(FARMING, UserWarning, stacklevel=2)
    return np.nan_to_num(delta, nan=0.0)
