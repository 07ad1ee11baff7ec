"""Acts in rollouts around a policy of one denoising step: smooth noise, and the best of several.

It has what `RolloutWorker` needs of a policy, and keeps the policy's features next to what it does.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from training.rl.value.chunk_value import ChunkValue
from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Array, DenoisingChain, Observation, PolicyState
from vla.policies.vla import Config as PolicyConfig
from vla.policies.vla import VLAPolicy

SLICE = 8
"""Rows that are encoded at once: more do not fit the cache of a CPU core."""


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """How rollouts differ from what the policy does."""

    noise_std: tuple[float, ...] = (0.12, 0.06, 0.04, 0.04)
    """Standard deviation of the noise on an executed chunk by frequency, lowest first, in
    normalised action units; the last holds for all higher ones. Smooth noise moves the tool."""
    num_candidates: int = 8
    """Chunks of which the one of the highest value is executed; 1 for no choice."""
    best_of_n_fraction: float = 0.5
    """Share of the decisions in which it is chosen, once the value function has learned."""

    def __post_init__(self) -> None:
        validate_min(self, num_candidates=1, best_of_n_fraction=0)
        if not self.noise_std or min(self.noise_std) <= 0 or self.best_of_n_fraction > 1:
            raise ValueError(
                f"exploration: got noise_std {self.noise_std} and best_of_n_fraction "
                f"{self.best_of_n_fraction}, expected deviations above 0 and a share of at most 1"
            )


class SmoothNoise(nn.Module):
    """Gaussian noise on a chunk of H actions, independent per frequency (orthonormal DCT-II)."""

    basis: Tensor
    std: Tensor

    def __init__(self, config: ExplorationConfig, length: int) -> None:
        super().__init__()
        frequency, time = torch.arange(length)[:, None], torch.arange(length)[None]
        basis = torch.cos(math.pi * (time + 0.5) * frequency / length)
        basis *= torch.where(frequency == 0, math.sqrt(1 / length), math.sqrt(2 / length))
        std = [config.noise_std[min(i, len(config.noise_std) - 1)] for i in range(length)]
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None], persistent=False)

    def forward(self, noise: Tensor) -> Tensor:
        """Return noise on chunks from standard normal numbers, both f32 [..., h, u]."""
        return self.basis.T @ (noise * self.std)

    def kl(self, mean: Tensor, other: Tensor) -> Tensor:
        """Return KL f32 [b] of two such Gaussians around chunks f32 [b, h, u], in nats."""
        return 0.5 * (self.basis @ (mean - other) / self.std).square().flatten(1).sum(1)


class Explorer(nn.Module):
    """Stands in for a policy in `RolloutWorker`.

    Args:
        policy: With one denoising step, in evaluation mode.
        config: Settings.
        value: Chooses among chunks; no choice if None.
        time_limit: Longest episode, in control steps.
        needs_simulator: Whether rollouts keep the simulator's state: as labels, as the value
            function's input, or to fit and to check the estimate of it.
    """

    ready: Tensor

    def __init__(
        self, policy: VLAPolicy, config: ExplorationConfig, value: ChunkValue | None,
        time_limit: int, *, needs_simulator: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.policy, self.settings, self.value, self.time_limit = policy, config, value, time_limit
        self.needs_simulator = needs_simulator
        self.candidates = config.num_candidates if value else 1
        self.smooth = SmoothNoise(config, policy.n_action_steps)
        self.register_buffer("ready", torch.tensor(False))
        """Whether the value function has learned."""

    @property
    def config(self) -> PolicyConfig:
        """The policy's."""
        return self.policy.config

    @property
    def robot(self) -> RobotSpec:
        """The policy's."""
        return self.policy.robot

    @property
    def remembers(self) -> bool:
        """Whether a decision depends on earlier observations."""
        return self.policy.remembers

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Of a decision: the policy's noise, that of every candidate, and a coin."""
        return self.candidates + 2, *self.policy.noise_shape[1:]

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return self.policy.initial_state(batch)

    @torch.no_grad()
    def sample(
        self, obs: Observation, state: PolicyState, noise: Array,
        simulator: Array | None = None,
    ) -> tuple[ActionChunk, DenoisingChain, PolicyState]:  # fmt: skip
        """Return a chunk, what it came from, and the state after the decision.

        Args:
            obs: B observations.
            state: The policy's memory.
            noise: f32 [b, *noise_shape], standard normal.
            simulator: f32 [b, p], the simulator's state, for a value function that reads it.
        """
        policy = self.policy
        features, after = self._features(obs, state)
        normal = torch.as_tensor(noise, device=policy.device)
        chunk = one_step(policy, features, normal[:, 0])
        length = policy.n_action_steps
        shifts = self.smooth(normal[:, 1:-1, :length])  # [b, n, h, u]
        explored = chunk[:, :length] + shifts[:, 0]
        if self.value is not None and bool(self.ready) and self.candidates > 1:
            clock = torch.as_tensor(obs.time_s, device=policy.device) * self.robot.control_hz
            known = features[:, :0] if simulator is None else torch.as_tensor(simulator)
            states = self.value.states(
                features, known.to(policy.device), clock.float() / self.time_limit
            )
            best = self._best(self.value, states, chunk[:, :length], shifts)
            coin = torch.special.ndtr(normal[:, -1, 0, 0]) < self.settings.best_of_n_fraction
            explored = torch.where(coin[:, None, None], best, explored)
        chunk = torch.cat([explored, chunk[:, length:]], 1)
        chain = DenoisingChain(
            latents=torch.stack([normal[:, 0], chunk], 1),
            log_prob=chunk.new_zeros(len(chunk), 1), features=features,
        )  # fmt: skip
        return policy.chunk_of(obs, chunk), chain, after

    def _best(self, value: ChunkValue, states: Tensor, chunk: Tensor, shifts: Tensor) -> Tensor:
        """Return, of each chunk f32 [b, h, u] and its shifted ones, the one of highest value."""
        candidates = torch.cat([chunk[:, None], chunk[:, None] + shifts[:, 1:]], 1)
        count = candidates.shape[1]
        bound, _ = value.lower_bound(states.repeat_interleave(count, 0), candidates.flatten(0, 1))
        best = bound.unflatten(0, (-1, count)).argmax(1)
        return candidates[torch.arange(len(best), device=best.device), best]

    def _features(self, obs: Observation, state: PolicyState) -> tuple[Tensor, PolicyState]:
        """Return `VLAPolicy.features`, encoded in slices on a CPU."""
        rows = len(obs.time_s)
        if self.policy.device.type != "cpu" or rows <= SLICE:
            return self.policy.features(obs, state)
        slices = [np.arange(i, min(i + SLICE, rows)) for i in range(0, rows, SLICE)]
        parts = [self.policy.features(obs.rows(i), state.rows(i)) for i in slices]
        after = PolicyState.concatenate([part[1] for part in parts], torch.cat)
        return torch.cat([part[0] for part in parts]), after


def one_step_policy(policy: VLAPolicy) -> VLAPolicy:
    """Return a policy that denoises in one step, in evaluation mode.

    Raises:
        ValueError: its head predicts noise, of which one step makes no chunk.
    """
    if policy.head.config.prediction_type == "epsilon":
        raise ValueError(
            "policy: got a head with prediction_type epsilon, whose first denoising step is no "
            "chunk yet; use a policy trained with --policy.head.prediction-type sample, or "
            "--algo.type filtered_bc, dppo or ogpo"
        )
    return policy.with_steps(1).eval()


def one_step(policy: VLAPolicy, features: Tensor, noise: Tensor) -> Tensor:
    """Return chunks f32 [b, k, u] of a policy with one denoising step, from features f32 [b, d] and
    noise f32 [b, k, u].
    """
    return policy.head.step(0, noise, policy.context_of(features), False)[0]
