"""All rollouts as transitions, from which critics learn off policy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward
from vla.policies.vla import VLAPolicy


class Transitions(NamedTuple):
    """N decisions, and the M states they lead between."""

    features: Tensor
    """f32 [m, d], of the start policy."""
    state: Tensor
    """i64 [n], state of each decision; the next state is where it leads."""
    chunk: Tensor
    """f32 [n, h, u], normalised actions."""
    reward: Tensor
    """f32 [n]."""
    not_terminated: Tensor
    """f32 [n], 0 where the episode ended by the task's rules."""
    episode: np.ndarray
    """i64 [n], index of each decision's episode."""


def transitions(
    policy: VLAPolicy, features: Sequence[Tensor], episodes: Sequence[Episode],
    rewards: Sequence[EpisodeReward],
) -> Transitions:  # fmt: skip
    """Return the decisions of episodes; `policy` normalizes the executed actions.

    Features are f32 [t + 1, d] of each episode: of its decisions and its end.
    """
    counts = np.array([len(e) for e in episodes])
    begin = np.cumsum(counts + 1) - counts - 1
    not_terminated = np.ones(counts.sum(), np.float32)
    not_terminated[(np.cumsum(counts) - 1)[[e.terminated for e in episodes]]] = 0.0
    state = np.concatenate([b + np.arange(n) for b, n in zip(begin, counts, strict=True)])
    chunks = np.concatenate([executed(policy, e) for e in episodes])
    return Transitions(
        features=torch.cat(list(features)), state=torch.from_numpy(state),
        chunk=torch.from_numpy(chunks), not_terminated=torch.from_numpy(not_terminated),
        reward=torch.from_numpy(np.concatenate([r.reward for r in rewards])),
        episode=np.repeat(np.arange(len(episodes)), counts),
    )  # fmt: skip


def executed(policy: VLAPolicy, episode: Episode) -> np.ndarray:
    """Return the executed actions of every decision, normalised: f32 [t, h, u]."""
    sent = policy.normalizer.action(torch.from_numpy(episode.actions)).numpy()
    # Of the policy's actions what it sampled, without the limits that the arm puts to it.
    sampled = episode.latents[:, -1, : policy.config.n_action_steps]
    return np.where(episode.is_policy_action[:, None, None], sampled, sent)
