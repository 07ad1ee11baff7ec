"""In which states practice begins: leads are as long as there is most to learn after them.

Where an episode always succeeds after a lead, and where it never does, there is nothing to learn:
leads are drawn by s (1 - s), s being the share of success after them, as far as the reward tells.
That is the variance of what comes of them (ProCuRL, Tzannetos et al. 2023; learnability, Rutherford
et al. 2024).
"""

from collections.abc import Sequence

import numpy as np

from training.rl.experience import Episode
from training.rl.rewards import Worth

WIDTH = 1.0
"""How far success of one lead tells of another: standard deviation of the kernel, in decisions."""
LEAST = 0.01
"""Weight that every lead keeps: what was never tried may be learned from one day."""


def lead_of(episode: Episode) -> int:
    """Return how many decisions at its beginning somebody else made."""
    own = np.flatnonzero(~episode.helped)
    return int(own[0]) if len(own) else len(episode)


def leads(episodes: Sequence[Episode], worth: Sequence[Worth], longest: int) -> np.ndarray:
    """Return how likely a lead of 0 to `longest` decisions is drawn, f64 [longest + 1]; sums to 1.

    Where help came after the lead, or an attempt anew, the episode did not succeed by itself.

    Args:
        episodes: Practised so far.
        worth: What each was worth; its success is the reward's word, not the simulator's.
        longest: Decisions of the longest lead.
    """
    length = np.array([lead_of(episode) for episode in episodes], float)
    good = np.array([
        one.success and episode.own[lead_of(episode) :].all()
        for episode, one in zip(episodes, worth, strict=True)
    ], float)  # fmt: skip
    near = np.exp(-0.5 * ((np.arange(longest + 1)[:, None] - length) / WIDTH) ** 2)
    # As if half of one episode had succeeded: at first every lead is as likely.
    share = (near @ good + 0.5) / (near.sum(1) + 1.0)
    weight = share * (1 - share) + LEAST
    return weight / weight.sum()
