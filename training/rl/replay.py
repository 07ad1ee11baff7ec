"""All practice as values learn from it: decisions with what they led to, off policy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.rl.experience import Episode
from training.rl.rewards import Worth
from vla.policies.vla import VLAPolicy


class Transitions(NamedTuple):
    """N decisions, and M moments they lead between."""

    features: Tensor
    """f32 [m, d], of the policy that practice started from."""
    before: Tensor
    """i64 [n], moment of each decision; the next moment is where it leads."""
    chunk: Tensor
    """f32 [n, h, u], normalised actions."""
    reward: Tensor
    """f32 [n]."""
    goes_on: Tensor
    """f32 [n], 0 where the episode ended for good."""
    episode: np.ndarray
    """i64 [n], place of each decision's episode."""


def transitions(
    policy: VLAPolicy, features: Sequence[Tensor], episodes: Sequence[Episode],
    worth: Sequence[Worth],
) -> Transitions:  # fmt: skip
    """Return the decisions of episodes.

    Args:
        policy: Normalises what was done.
        features: f32 [t + 1, d] of each episode: its decisions and its end.
        episodes: All that was practised.
        worth: What each is worth.
    """
    counts = np.array([len(e) for e in episodes])
    begin = np.cumsum(counts + 1) - counts - 1
    goes_on = np.ones(counts.sum(), np.float32)
    goes_on[(np.cumsum(counts) - 1)[[e.terminated for e in episodes]]] = 0.0
    before = np.concatenate([b + np.arange(n) for b, n in zip(begin, counts, strict=True)])
    chunks = np.concatenate([executed(policy, e) for e in episodes])
    return Transitions(
        features=torch.cat(list(features)), before=torch.from_numpy(before),
        chunk=torch.from_numpy(chunks), goes_on=torch.from_numpy(goes_on),
        reward=torch.from_numpy(np.concatenate([w.reward for w in worth])),
        episode=np.repeat(np.arange(len(episodes)), counts),
    )  # fmt: skip


def executed(policy: VLAPolicy, episode: Episode) -> np.ndarray:
    """Return what was done at every decision, normalised: f32 [t, h, u]."""
    done = policy.normalizer.action(torch.from_numpy(episode.actions)).numpy()
    # Of what the policy did itself, without the limits that the arm put to it.
    own = episode.latents[:, -1, : policy.config.execute]
    return np.where(episode.own[:, None, None], own, done)
