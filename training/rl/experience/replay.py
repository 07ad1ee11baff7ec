"""All rollouts as transitions, from which critics learn off policy."""

from collections.abc import Mapping, Sequence
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
    """f32 [n], 0 where the episode ended."""
    episode: np.ndarray
    """i64 [n], index of each decision's episode."""


def transitions(
    policy: VLAPolicy, features: Sequence[Tensor], episodes: Sequence[Episode],
    rewards: Sequence[EpisodeReward], *, bootstrap_time_limits: bool,
) -> Transitions:  # fmt: skip
    """Return the decisions of episodes; `policy` normalizes the executed actions. With
    `bootstrap_time_limits` only the task's rules end an episode, and its time limit does not.

    Features are f32 [t + 1, d] of each episode: of its decisions and its end.
    """
    counts = np.array([len(e) for e in episodes])
    begin = np.cumsum(counts + 1) - counts - 1
    not_terminated = np.ones(counts.sum(), np.float32)
    ended = [e.terminated or not bootstrap_time_limits for e in episodes]
    not_terminated[(np.cumsum(counts) - 1)[ended]] = 0.0
    state = np.concatenate([b + np.arange(n) for b, n in zip(begin, counts, strict=True)])
    chunks = np.concatenate([executed(policy, e) for e in episodes])
    arrays = {
        "state": state, "chunk": chunks, "not_terminated": not_terminated,
        "reward": np.concatenate([r.reward for r in rewards]),
    }  # fmt: skip
    return Transitions(
        features=torch.cat(list(features)), episode=np.repeat(np.arange(len(episodes)), counts),
        **_tensors(policy, arrays),
    )  # fmt: skip


class Replay(NamedTuple):
    """N decisions with what the policy's last layers and a value function see of them."""

    features: Tensor
    """f32 [n, d], `VLAPolicy.features`."""
    simulator: Tensor
    """f32 [n, p], the simulator's state."""
    clock: Tensor
    """f32 [n], share of the time limit used before the decision."""
    chunk: Tensor
    """f32 [n, h, u], normalised actions that were executed."""
    reward: Tensor
    """f32 [n], 1 where an episode ended in success."""
    not_ended: Tensor
    """f32 [n], 0 where an episode ended, by the task's rules or by its time limit: the clock is
    part of the state, so running out of time is an outcome like any other."""
    next: Tensor
    """i64 [n], the decision after; the same one at an end."""
    episode: np.ndarray
    """i64 [n], index of each decision's episode."""

    @property
    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `ChunkValue.states` takes."""
        return self.features, self.simulator, self.clock


def replay(
    policy: VLAPolicy, episodes: Sequence[Episode], success: Sequence[bool], time_limit: int
) -> Replay:
    """Return the decisions of episodes with features; `success` is that of each, by the source of
    the reward, and `time_limit` the control steps of the longest.
    """
    counts = np.array([len(e) for e in episodes])
    last = np.cumsum(counts) - 1
    reward, not_ended = np.zeros(counts.sum(), np.float32), np.ones(counts.sum(), np.float32)
    reward[last] = [s and e.terminated for s, e in zip(success, episodes, strict=True)]
    not_ended[last] = 0.0
    after = np.arange(counts.sum()) + not_ended.astype(np.int64)
    arrays = {
        "features": np.concatenate([e.features for e in episodes]),
        "simulator": np.concatenate([e.simulator_state for e in episodes]),
        "clock": np.concatenate([clock(e, time_limit)[:-1] for e in episodes]),
        "chunk": np.concatenate([executed(policy, e) for e in episodes]),
        "reward": reward, "not_ended": not_ended, "next": after,
    }  # fmt: skip
    number = np.repeat(np.arange(len(episodes)), counts)
    return Replay(episode=number, **_tensors(policy, arrays))


def _tensors(policy: VLAPolicy, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return arrays by name on the policy's device."""
    return {name: torch.from_numpy(array).to(policy.device) for name, array in arrays.items()}


def clock(episode: Episode, time_limit: int) -> np.ndarray:
    """Return the share of the time limit used before every decision and at the end: f32 [t + 1]."""
    return (episode.step[episode.boundary_index] / time_limit).astype(np.float32)


def executed(policy: VLAPolicy, episode: Episode) -> np.ndarray:
    """Return the executed actions of every decision, normalised: f32 [t, h, u]."""
    actions = torch.from_numpy(episode.actions).to(policy.device)
    sent = policy.normalizer.action(actions).cpu().numpy()
    # Of the policy's actions what it sampled, without the limits that the arm puts to it.
    sampled = episode.latents[:, -1, : policy.config.n_action_steps]
    return np.where(episode.is_policy_action[:, None, None], sampled, sent)
