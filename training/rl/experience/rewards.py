"""Rewards of rollouts: by the simulator, by the learned reward model, or by both.

The reward model sees cameras, clock and instruction, nothing else. Where it abstains there is no
reward. Where it is the only source, progress itself pays (1 - gamma) Phi at every decision; with
the potential-based term for the same Phi that makes Phi(s') - Phi(s). The potential alone would
teach nothing: shaping leaves the best policy what it was, and without a reward all are best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reward_models.core.shaping import held, shaped
from training.rl.experience.episode import Episode, frames
from vla.contracts.protocols import RewardModel

Source = Literal["sparse", "learned", "learned+sparse", "dense_oracle"]
MIN_DONE_PROB = 0.1
"""Probability of done at the end of an episode from which it counts as predicted. It is calibrated
on all frames, few of them ends, and an end is seen only for a moment."""
MIN_FINAL_PROGRESS = 0.75
"""Progress below which an end does not count as done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeReward:
    """Rewards of one episode of T decisions."""

    reward: np.ndarray
    """f32 [t]."""
    potential: np.ndarray
    """f32 [t + 1], progress; NaN where the reward model abstained, 0 for the sparse reward."""
    success: bool
    """Success by the source of the reward."""


def compute_rewards(
    episodes: Sequence[Episode], source: Source, *, gamma: float, scorer: RewardModel | None = None,
    views: Sequence[int] = (),
) -> list[EpisodeReward]:  # fmt: skip
    """Return the rewards of episodes.

    Args:
        episodes: Rollouts.
        source: Source of the reward.
        gamma: Discount per decision, of the potential-based term.
        scorer: The learned reward model, where the source names it; ValueError without.
        views: The reward model's cameras among those of the episodes.
    """
    if source in ("sparse", "dense_oracle"):
        return true_rewards(episodes, source, gamma=gamma)
    if scorer is None:
        raise ValueError(f"reward {source!r} needs a reward model; give one with --reward-model")
    potential, done = _predict(episodes, scorer, views)
    success = done if source == "learned" else [e.success for e in episodes]
    return _rewards(episodes, source, potential, success, gamma)


def true_rewards(
    episodes: Sequence[Episode], source: Source, *, gamma: float
) -> list[EpisodeReward]:
    """Return the rewards that a source would give if it knew what the simulator knows."""
    if source == "sparse":
        return [
            EpisodeReward(
                reward=e.reward, potential=np.zeros(len(e) + 1, np.float32), success=e.success
            )
            for e in episodes
        ]
    potential = [e.progress[e.boundary_index] for e in episodes]
    return _rewards(episodes, source, potential, [e.success for e in episodes], gamma)


def _rewards(
    episodes: Sequence[Episode], source: Source, potential: list[np.ndarray], success: list[bool],
    gamma: float,
) -> list[EpisodeReward]:  # fmt: skip
    """Return the rewards that progress and success make, by the rule of a source."""
    rule = _progress_rewards if source == "learned" else _shaped_rewards
    return [
        EpisodeReward(reward=rule(e, p, s, gamma), potential=p, success=bool(s))
        for e, p, s in zip(episodes, potential, success, strict=True)
    ]


def _predict(
    episodes: Sequence[Episode], scorer: RewardModel, views: Sequence[int]
) -> tuple[list[np.ndarray], list[bool]]:
    """Return the predicted progress of every frame, and whether each end counts as done."""
    prediction = scorer.score(frames(episodes, views), tuple(e.task for e in episodes))
    ends = np.cumsum([len(e) + 1 for e in episodes])
    potential = np.split(prediction.value, ends[:-1])
    far = [held(p)[0][-1] >= MIN_FINAL_PROGRESS for p in potential]  # NaN is not far
    done = prediction.done_prob[ends - 1] >= MIN_DONE_PROB
    return potential, [bool(d) and bool(f) for d, f in zip(done, far, strict=True)]


def _shaped_rewards(
    episode: Episode, potential: np.ndarray, success: bool, gamma: float
) -> np.ndarray:
    filled, gaps = held(potential)
    ended = (np.arange(len(episode)) == len(episode) - 1) & episode.terminated
    reward = shaped(filled[:-1], filled[1:], gamma=gamma, ended=ended, done_bonus=float(success))
    # A gap is paid when the reward model predicts again; the step itself earns nothing.
    return np.where(gaps[1:] & ~ended, 0.0, reward).astype(np.float32)


def _progress_rewards(
    episode: Episode, potential: np.ndarray, success: bool, gamma: float
) -> np.ndarray:
    """Return the rise of progress at every decision, and 1 for an end predicted as done."""
    filled, gaps = held(potential)
    gained = np.where(gaps[1:] | np.isnan(filled[:-1]), 0.0, filled[1:] - filled[:-1])
    gained[-1] += float(success and episode.terminated)
    return gained.astype(np.float32)
