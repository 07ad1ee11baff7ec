"""Predictions of one reward model for one evaluation set, as flat arrays next to the truth."""

import functools
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from reward_models.core.truth import frame_at_lag
from vla.contracts.types import Progress

DONE = 0.5
"""Probability from which a frame counts as predicted done."""


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """F frames of N episodes, sorted by episode and, within it, by time."""

    episode: Int64[np.ndarray, " f"]
    """Episode of every frame, in [0, N); every episode has a frame."""
    time_s: Float64[np.ndarray, " f"]
    """Seconds since the episode began."""
    progress: Float32[np.ndarray, " f"]
    """True progress, in [0, 1]."""
    success: Bool[np.ndarray, " f"]
    """True success: the task is complete."""
    value: Float32[np.ndarray, " f"]
    """Predicted progress; NaN where the reward model abstains."""
    delta: Float32[np.ndarray, " f"]
    """Predicted change over the horizon; NaN where the reward model abstains."""
    trend: Float32[np.ndarray, "f 3"]
    """Probabilities of regress, stagnation, progress over the horizon."""
    done_prob: Float32[np.ndarray, " f"]
    """Probability of being complete."""
    match: Float32[np.ndarray, " f"]
    """Probability that the instruction fits the scene."""
    confidence: Float32[np.ndarray, " f"]
    """Probability that `value` is within 0.1 of `progress`."""
    task: tuple[str, ...]
    """Task of each of the N episodes."""
    behaviour: tuple[str, ...]
    """Behaviour that acted in each of the N episodes."""
    horizon_s: float = 1.0
    """Time over which `delta` and `trend` are measured."""

    def __post_init__(self) -> None:
        frames, count = len(self.episode), len(self.task)
        for name in _PER_FRAME:
            if len(getattr(self, name)) != frames:
                raise ValueError(
                    f"{name}: got {len(getattr(self, name))} rows, expected {frames}, one per "
                    "frame; cut all arrays alike"
                )
        if len(self.behaviour) != count:
            raise ValueError(
                f"behaviour: got {len(self.behaviour)} names, expected {count}, one per episode"
            )
        if not np.array_equal(np.unique(self.episode), np.arange(count)):
            raise ValueError(
                f"episode: expected every number from 0 to {count - 1}, got "
                f"{len(np.unique(self.episode))} different ones; number the episodes without gaps"
            )
        same = np.diff(self.episode) == 0
        if np.any(np.diff(self.episode) < 0) or np.any(same & (np.diff(self.time_s) <= 0)):
            raise ValueError("frames must be in order of episode and, within it, of time")

    @functools.cached_property
    def begin(self) -> np.ndarray:
        """First frame of every episode, i64 [n]."""
        return np.searchsorted(self.episode, np.arange(len(self.task)))

    @functools.cached_property
    def last(self) -> np.ndarray:
        """Last frame of every episode, i64 [n]."""
        return np.append(self.begin[1:], len(self.episode)) - 1

    @functools.cached_property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, sorted."""
        return tuple(sorted(set(self.task)))

    @functools.cached_property
    def task_of(self) -> np.ndarray:
        """Position in `tasks` of every episode's task, i64 [n]."""
        return np.searchsorted(np.array(self.tasks), np.array(self.task))

    @functools.cached_property
    def succeeded(self) -> np.ndarray:
        """Whether every episode ended in success, bool [n]."""
        return self.success[self.last]

    @functools.cached_property
    def final_value(self) -> np.ndarray:
        """Last prediction of every episode, f32 [n]; 0 where all are abstained."""
        valid = [part[~np.isnan(part)] for part in self.cut(self.value)]
        return np.array([part[-1] if len(part) else 0.0 for part in valid], np.float32)

    @functools.cached_property
    def final_done(self) -> np.ndarray:
        """Probability of being complete at the end of every episode, f32 [n]."""
        return self.done_prob[self.last]

    @functools.cached_property
    def anchor(self) -> np.ndarray:
        """Newest frame at least a horizon earlier in the episode, or its first, i64 [f]."""
        return frame_at_lag(self.episode, self.time_s, self.horizon_s)

    def cut(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the rows of a per-frame array, episode by episode."""
        return np.split(array, self.begin[1:])


def unpredicted(
    *,
    episode: np.ndarray,
    time_s: np.ndarray,
    progress: np.ndarray,
    success: np.ndarray,
    task: tuple[str, ...],
    behaviour: tuple[str, ...],
) -> Episodes:
    """Return episodes without predictions; for the arguments see `Episodes`."""
    nan = np.full(len(episode), np.nan, np.float32)
    zero = np.zeros(len(episode), np.float32)
    stagnation = np.stack([zero, zero + 1, zero], 1)
    return Episodes(
        episode=episode, time_s=time_s, progress=progress, success=success, value=nan,
        delta=nan, trend=stagnation, done_prob=zero, match=zero, confidence=zero, task=task,
        behaviour=behaviour,
    )  # fmt: skip


def with_predictions(episodes: Episodes, progress: Progress) -> Episodes:
    """Return `episodes` with a reward model's predictions, numpy arrays."""
    return replace(episodes, **{f.name: getattr(progress, f.name) for f in fields(Progress)})


_PER_SET = ("task", "behaviour", "horizon_s")
_PER_FRAME = tuple(f.name for f in fields(Episodes) if f.name not in _PER_SET)
