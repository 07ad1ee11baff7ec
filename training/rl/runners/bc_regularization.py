"""What the BC loss holds on to: the start policy's own rollouts, or the demonstrations.

Whichever is better is what updates may not lose (Li et al. 2025, Three Regimes of Offline-to-Online
Reinforcement Learning). Where the two cannot be told apart the demonstrations are taken.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward
from vla.utils.statistics import wilson

Anchor = Literal["data", "policy"]
MIN_EPISODES = 5
"""Rollouts of the start policy alone below which they are not compared."""


def choose(policy: Sequence[bool], data: Sequence[bool]) -> Anchor:
    """Return the anchor: the policy if the Wilson interval of its successes, by the reward, lies
    above that of the demonstrations'.
    """
    if len(policy) < MIN_EPISODES or not data:
        return "data"
    low, _ = wilson(sum(policy), len(policy))
    _, high = wilson(sum(data), len(data))
    return "policy" if low > high else "data"


def policy_success(episodes: Sequence[Episode], rewards: Sequence[EpisodeReward]) -> list[bool]:
    """Return the success of the episodes in which the policy alone acted."""
    pairs = zip(episodes, rewards, strict=True)
    return [reward.success for episode, reward in pairs if episode.is_policy_action.all()]


def recorded_success(success: np.ndarray | None, offsets: np.ndarray) -> list[bool]:
    """Return whether recorded episodes, steps offsets[e] to offsets[e + 1], ended in success: above
    0.5 in f32 [steps]; all did where the data set has no such column.
    """
    if success is None:
        return [True] * (len(offsets) - 1)
    return [bool(last > 0.5) for last in success[offsets[1:] - 1]]
