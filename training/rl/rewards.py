"""What practice is worth: by the simulator, by the learned critic, or by both.

The critic sees cameras, clock and instruction, nothing else. Where it abstains there is no reward.
Where it is the only source, being far on is what is worth something, (1 - gamma) Phi at every
decision; with the potential-based term for the same Phi that makes Phi(s') - Phi(s). The potential
alone would teach nothing: it leaves the best policy what it was, and without it all are best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reward_models.shaping import held, shaped
from training.rl.experience import Episode, frames
from vla.contracts.protocols import RewardModel

Source = Literal["sparse", "critic", "critic+sparse", "oracle"]
DONE = 0.1
"""Probability of done from which the critic is taken to say so at the end of an episode. It is
calibrated on all moments, of which few are ends, and an end is seen only for a moment."""
FAR = 0.75
"""Progress without which it is not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Worth:
    """What one episode of T decisions is worth."""

    reward: np.ndarray
    """f32 [t]."""
    potential: np.ndarray
    """f32 [t + 1], progress; NaN where the critic abstained. The sparse reward knows none: 0."""
    success: bool
    """Whether the source of the reward takes it for a success."""


def worth(
    episodes: Sequence[Episode], source: Source, *, gamma: float, scorer: RewardModel | None = None,
    views: Sequence[int] = (),
) -> list[Worth]:  # fmt: skip
    """Return what episodes are worth.

    Args:
        episodes: Practised episodes.
        source: Where reward comes from.
        gamma: Discount per decision, of the potential-based term.
        scorer: The learned critic, where the source names it.
        views: The critic's cameras among those of the episodes.

    Raises:
        ValueError: a critic is needed and none is given.
    """
    if source == "sparse":
        return [
            Worth(reward=e.reward, potential=np.zeros(len(e) + 1, np.float32), success=e.success)
            for e in episodes
        ]
    if source == "oracle":
        return truth(episodes, source, gamma=gamma)
    if scorer is None:
        raise ValueError(f"reward {source!r} needs a critic; give one with --critic")
    potential, done = _judged(episodes, scorer, views)
    success = done if source == "critic" else [e.success for e in episodes]
    return _paid(episodes, source, potential, success, gamma)


def truth(episodes: Sequence[Episode], source: Source, *, gamma: float) -> list[Worth]:
    """Return what the same reward would be if its source knew what the simulator knows."""
    if source == "sparse":
        return worth(episodes, source, gamma=gamma)
    potential = [e.progress[e.decided] for e in episodes]
    return _paid(episodes, source, potential, [e.success for e in episodes], gamma)


def _paid(
    episodes: Sequence[Episode], source: Source, potential: list[np.ndarray], success: list[bool],
    gamma: float,
) -> list[Worth]:  # fmt: skip
    """Return what progress and success come to, by the rule of a source."""
    rewarded = _advanced if source == "critic" else _shaped
    return [
        Worth(reward=rewarded(e, p, s, gamma), potential=p, success=bool(s))
        for e, p, s in zip(episodes, potential, success, strict=True)
    ]


def _judged(
    episodes: Sequence[Episode],
    scorer: RewardModel,
    views: Sequence[int],
) -> tuple[list[np.ndarray], list[bool]]:
    """Return the critic's progress of every moment, and whether each end is taken for done."""
    said = scorer.score(frames(episodes, views), tuple(e.task for e in episodes))
    ends = np.cumsum([len(e) + 1 for e in episodes])
    potential = np.split(said.value, ends[:-1])
    far = [held(one)[0][-1] >= FAR for one in potential]  # not a number is not far
    return potential, [bool(p >= DONE) and bool(f) for p, f in zip(
        said.done_prob[ends - 1], far, strict=True
    )]  # fmt: skip


def _shaped(episode: Episode, potential: np.ndarray, success: bool, gamma: float) -> np.ndarray:
    known, gaps = held(potential)
    ended = (np.arange(len(episode)) == len(episode) - 1) & episode.terminated
    reward = shaped(known[:-1], known[1:], gamma=gamma, ended=ended, done_bonus=float(success))
    # What is held is settled when the critic speaks again; the step itself earns nothing.
    return np.where(gaps[1:] & ~ended, 0.0, reward).astype(np.float32)


def _advanced(episode: Episode, potential: np.ndarray, success: bool, gamma: float) -> np.ndarray:
    """Return what was gained at every decision, and 1 for an end that the critic takes for done."""
    known, gaps = held(potential)
    gained = np.where(gaps[1:] | np.isnan(known[:-1]), 0.0, known[1:] - known[:-1])
    gained[-1] += float(success and episode.terminated)
    return gained.astype(np.float32)
