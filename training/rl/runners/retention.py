"""What online RL on one task may not lose: the start policy's answers in other situations.

The reward teaches some tasks or goals; the layers that learn serve all of them. So the policy is
held to the start policy, in the denoising steps that this had, by their KL divergence, at decisions
of recorded episodes of whatever it has to keep.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.data import batches
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.data.store import EpisodeStore
from vla.policies.vla import VLAPolicy

ENCODED_AT_ONCE = 8
"""Episodes, or 16 times as many single decisions, that are encoded at once."""


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """What is kept, and how firmly."""

    datasets: tuple[str, ...] = ()
    """Folders of data sets of tasks and goals that the policy has to keep; each has the same
    weight. Empty for none."""
    kl_coef: float = 1.0
    """Weight of the KL to the start policy, in nats per decision."""
    batch_size: int = 256
    """Decisions per policy update."""
    episodes: int = 200
    """Most episodes of each data set; drawn at random."""

    def __post_init__(self) -> None:
        validate_min(self, kl_coef=0, batch_size=1, episodes=1)


class Retention:
    """Decisions to keep, as features of the start policy; `encode` comes before `sample`.

    Raises:
        ValueError: a data set is missing, damaged or of another arm.
    """

    def __init__(self, config: RetentionConfig, policy: VLAPolicy, seed: int) -> None:
        self._config, self._policy = config, policy
        self._rng = np.random.default_rng(seed)
        self._stores = [
            batches.load_for_policy(policy, Path(folder), phase_seed=0)
            for folder in config.datasets
        ]
        self.features: list[Tensor] = []
        """f32 [m, d] of each data set, once they are encoded."""

    def encode(self) -> None:
        """Encode the decisions, unless they are: about a minute for 1,400 episodes on one core."""
        policy, episodes = self._policy, self._config.episodes
        for store in self._stores[len(self.features) :]:
            parts = _decisions(policy, store, episodes, self._rng)
            self.features.append(torch.cat([policy.batch_features(part) for part in parts]))

    def sample(self, generator: torch.Generator) -> Tensor:
        """Return features of decisions f32 [batch_size, d], of each data set about as many."""
        chosen = torch.randint(len(self.features), (self._config.batch_size,), generator=generator)
        parts = []
        for number, features in enumerate(self.features):
            count = int((chosen == number).sum())
            rows = torch.randint(len(features), (count,), generator=generator)
            parts.append(features[rows.to(features.device)])
        return torch.cat(parts)


def _decisions(
    policy: VLAPolicy, store: EpisodeStore, episodes: int, rng: np.random.Generator
) -> Iterator[EpisodeBatch]:
    """Yield decisions of some episodes, in parts."""
    chunk = policy.config.chunk_size
    if not policy.remembers:
        # Any frame may be a decision; as many as the episodes would have.
        count = len(store.frames) * min(1.0, episodes / len(store.seq_episode))
        count = max(1, round(count / policy.n_action_steps))
        frames = np.sort(rng.choice(len(store.frames), count, replace=False))
        for part in _split(frames, 16 * ENCODED_AT_ONCE):
            yield batches.frame_batch(store, part, chunk)
        return
    total = len(store.seq_episode)
    sequences = rng.choice(total, min(episodes, total), replace=False)
    even = np.ones(len(store.frames), np.float32)
    for part in _split(sequences, ENCODED_AT_ONCE):
        longest = int(store.seq_lengths[part].max())
        yield batches.episode_batch(store, part, chunk, longest, even, rng)


def _split(values: np.ndarray, size: int) -> list[np.ndarray]:
    return np.split(values, range(size, len(values), size))
