"""Where rollouts begin: jump starts are as long as there is most to learn after them.

Where an episode always succeeds after a jump start, and where it never does, there is nothing to
learn: the length is drawn by s (1 - s), s being the share of success after it, by the reward. That
is the variance of the outcome (ProCuRL, Tzannetos et al. 2023; learnability, Rutherford et al.
2024).
"""

from collections.abc import Sequence

import numpy as np

from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward

KERNEL_WIDTH = 1.0
"""Standard deviation, in decisions, of the kernel that pools success over lengths."""
MIN_WEIGHT = 0.01
"""Weight that every length keeps: what never succeeded may be learned later."""


def guide_steps(episode: Episode) -> int:
    """Return how many decisions at its beginning an intervention source made."""
    others = np.flatnonzero(~episode.is_intervention)
    return int(others[0]) if len(others) else len(episode)


def guide_step_probs(
    episodes: Sequence[Episode], rewards: Sequence[EpisodeReward], longest: int
) -> np.ndarray:
    """Return how likely a jump start of 0 to `longest` decisions is, f64 [longest + 1]; sums to 1.

    Success is the reward's prediction, not the simulator's. Where an intervention or a retry came
    after the jump start, the episode did not succeed by itself.
    """
    length = np.array([guide_steps(episode) for episode in episodes], float)
    success = np.array([
        reward.success and episode.is_policy_action[guide_steps(episode) :].all()
        for episode, reward in zip(episodes, rewards, strict=True)
    ], float)  # fmt: skip
    near = np.exp(-0.5 * ((np.arange(longest + 1)[:, None] - length) / KERNEL_WIDTH) ** 2)
    # As if half of one episode had succeeded: at first every length is as likely.
    share = (near @ success + 0.5) / (near.sum(1) + 1.0)
    weight = share * (1 - share) + MIN_WEIGHT
    return weight / weight.sum()
