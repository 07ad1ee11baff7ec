"""What practice has to hold on to: the policy it starts from, or the data that was cloned from.

Whichever is better is what updates may not lose (Li et al. 2025, Three Regimes of Offline-to-Online
Reinforcement Learning). Cloning during practice is the stabiliser here: of demonstrations, or of
what the start policy did by itself before the first update. Where the two cannot be told apart data
are taken, of which there is no more after practice than before.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from training.rl.experience import Episode
from training.rl.rewards import Worth
from vla.statistics import wilson

Kept = Literal["data", "policy"]
LEAST = 5
"""Episodes of the start policy's own below which nothing is said of it."""


def choose(policy: Sequence[bool], data: Sequence[bool]) -> Kept:
    """Return what to hold on to: the policy if its success lies above that of the data for sure.

    Args:
        policy: Whether each episode of the start policy succeeded, by the reward's word.
        data: Whether each recorded one did.
    """
    if len(policy) < LEAST or not data:
        return "data"
    low, _ = wilson(sum(policy), len(policy))
    _, high = wilson(sum(data), len(data))
    return "policy" if low > high else "data"


def by_itself(episodes: Sequence[Episode], worth: Sequence[Worth]) -> list[bool]:
    """Return whether episodes succeeded in which nobody but the policy acted."""
    pairs = zip(episodes, worth, strict=True)
    return [one.success for episode, one in pairs if episode.own.all()]


def recorded(success: np.ndarray | None, offsets: np.ndarray) -> list[bool]:
    """Return whether recorded episodes ended well; all did, where nobody noted it.

    Args:
        success: f32 [steps], above 0.5 where a step's state was a success.
        offsets: i64 [n + 1], where episodes begin and end among the steps.
    """
    if success is None:
        return [True] * (len(offsets) - 1)
    return [bool(one > 0.5) for one in success[offsets[1:] - 1]]
