"""Synthetic rollouts, and a reward model of given scores."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from training.rl.experience.episode import Episode
from training.rl.intervention.intervention import EpisodeControlConfig


def groups(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return groups of an episode control configuration, with other values in some of them."""
    config = EpisodeControlConfig()
    return {name: replace(getattr(config, name), **values) for name, values in changes.items()}


def control(**changes: dict[str, Any]) -> EpisodeControlConfig:
    """Return an episode control configuration with other values in some of its groups."""
    return EpisodeControlConfig(**groups(**changes))


def episode(
    decisions: int, *, success: bool = False, progress: tuple[float, ...] | None = None,
    number: int = 0,
) -> Episode:  # fmt: skip
    """Return an episode of so many decisions of two actions each, for two channels."""
    rng = np.random.default_rng(number)
    t = decisions
    reward = np.zeros(t, np.float32)
    reward[-1] = success
    return Episode(
        images=rng.integers(0, 255, (t + 1, 2, 8, 8, 3), np.uint8),
        proprio=rng.random((t + 1, 2), np.float32), time_s=np.arange(t + 1) * 0.2,
        actions=rng.random((t, 2, 2), np.float32), step=2 * np.arange(t + 1),
        decision_index=np.arange(t),
        action_source=np.zeros(t, np.int8),
        latents=rng.random((t, 3, 4, 2), np.float32), log_prob=rng.random((t, 2), np.float32),
        progress=np.array(progress or np.linspace(0, 0.5, t + 1), np.float32), reward=reward,
        terminated=success, success=success, task="push it", number=number, seed=3, version=1,
    )  # fmt: skip


class Says:
    """A reward model that says the given progress, one number per decision, in every row."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def start(self, batch, example=None, task=""):
        return 0

    def step(self, state, frames, task):
        return SimpleNamespace(value=np.full(len(task), self.values[state], np.float32)), state + 1

    def score(self, frames, task, example=None):
        raise AssertionError("whole episodes are not judged while they run")
