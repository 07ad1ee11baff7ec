"""From progress to reward: potential-based by default, so that no reward can be farmed."""

import warnings
from typing import Literal

import numpy as np

Kind = Literal["potential", "delta"]
FARMING = (
    "the raw delta as reward pays a policy that loses and regains progress over and over; use "
    "'potential' unless you watch for that"
)


def held(potential: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return potentials [t] in which a gap of NaN holds the last known one, and where gaps are.

    Without it, what is lost or gained during a gap would never be charged, and a policy could make
    the critic abstain whenever it loses something. Before the first known one there is nothing to
    hold: that stays NaN.
    """
    known = ~np.isnan(potential)
    last = np.maximum.accumulate(np.where(known, np.arange(len(potential)), -1))
    return np.where(last >= 0, potential[np.maximum(last, 0)], np.nan), ~known


def shaped(
    before: np.ndarray,
    after: np.ndarray,
    *,
    gamma: float,
    ended: np.ndarray,
    done_bonus: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return gamma * Phi(s') - Phi(s) plus the terminal term.

    Ng, Harada and Russell 1999: such a term leaves the best policy what it was, if Phi is 0 where
    an episode ends; so the potential of an end counts as 0 and what it is worth comes as the bonus.
    Where the critic abstained before or after, there is no reward for the step.

    Args:
        before: Phi(s), progress in [0, 1], NaN where the critic abstains.
        after: Phi(s').
        gamma: Discount per step.
        ended: True where s' ends the episode for good (not by the time limit).
        done_bonus: What the end is worth: 1 for success in the usual case.
    """
    potential = np.where(ended, 0.0, after)
    step = gamma * potential - before
    abstained = np.isnan(before) | np.isnan(after)
    return np.where(abstained, 0.0, step) + np.where(ended, done_bonus, 0.0)


def raw_delta(delta: np.ndarray) -> np.ndarray:
    """Return the signed share of remaining work as reward; abstained steps give none.

    Warns:
        UserWarning: it can be farmed.
    """
    warnings.warn(FARMING, UserWarning, stacklevel=2)
    return np.nan_to_num(delta, nan=0.0)
