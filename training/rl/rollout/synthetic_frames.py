"""Frames of new layouts with the arm where rollouts have been: to learn to see, a layout a frame.

The last actions before some decision of a rollout are executed in an episode that has just begun,
whatever they do there. That needs nothing of a simulator but its labels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sim import vec_env
from training.rl.experience.episode import Episode
from vla.contracts.types import Observation

STEPS = 16
"""Actions that bring the arm into its pose."""


class LabelledFrames(NamedTuple):
    """N frames and what the simulator knows of them."""

    images: np.ndarray
    """u8 [n, v, h, w, 3]."""
    proprio: np.ndarray
    """f32 [n, s]."""
    task: tuple[str, ...]
    """Instructions."""
    state: np.ndarray
    """f32 [n, p]."""


def synthetic_frames(
    env: Any, episodes: Sequence[Episode], count: int, seed: int
) -> LabelledFrames:
    """Return frames of episodes 0 to `count` - 1 of a seed.

    Args:
        env: E environments; any, but not those that a rollout runs in.
        episodes: Rollouts whose actions are executed.
        count: N, at least 1.
        seed: Of the layouts and of the choice of actions.
    """
    simulator, rng = vec_env.with_privileged_state(env), np.random.default_rng(seed)
    frames: list[tuple[Observation, np.ndarray]] = []
    everywhere = np.arange(env.num_envs)
    for first in range(0, count, env.num_envs):
        rows = everywhere[: count - first]
        env.begin(rows, np.full(len(rows), seed), first + rows)
        chosen = [episodes[i] for i in rng.integers(len(episodes), size=len(rows))]
        actions = np.zeros((env.num_envs, STEPS, chosen[0].actions.shape[2]), np.float32)
        actions[rows] = np.stack([_approach(episode, rng) for episode in chosen])
        frozen = ~np.isin(everywhere, rows)
        obs = env.step_chunk(actions, None, frozen).obs
        frames.append((obs.rows(rows), simulator.privileged_state()[rows]))
    observations = [obs for obs, _ in frames]
    return LabelledFrames(
        images=np.concatenate([np.asarray(obs.images) for obs in observations]),
        proprio=np.concatenate([np.asarray(obs.proprio) for obs in observations]),
        task=tuple(t for obs in observations for t in obs.task),
        state=np.concatenate([state for _, state in frames]),
    )  # fmt: skip


def _approach(episode: Episode, rng: np.random.Generator) -> np.ndarray:
    """Return the actions before a random decision of an episode, f32 [STEPS, u]; the first is
    repeated where there are fewer.
    """
    done, _ = episode.targets(np.zeros(1, np.int64), int(episode.step[-1]))
    end = int(rng.choice(episode.step[episode.decision_index]))
    return done[0][np.maximum(np.arange(end - STEPS, end), 0)]
