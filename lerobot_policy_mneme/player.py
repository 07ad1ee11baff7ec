"""Runs a policy on rows of arms one control step at a time, with memory, noise and time.

As `training.evaluation.evaluate.Player`, which runs chunk by chunk, for callers that ask at every
control step and restart rows without notice.
"""

import numpy as np
import torch
from torch import Tensor

from lerobot_policy_mneme.batch import Batch, clock, observation
from vla.policies.vla import VLAPolicy
from vla.runtime.noise import episode_noise


class Player:
    """State of a policy between calls.

    Time, index and seed of an episode come from the clock of our environments, where time 0 starts
    an episode. Without a clock (an arm, other environments) time counts calls since `reset`.

    Args:
        policy: In evaluation mode.
        seed: Seed of the noise without a clock.
    """

    def __init__(self, policy: VLAPolicy, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.played = 0
        self.reset()

    def reset(self) -> None:
        """Start new episodes in all rows."""
        self.rows, self.steps = 0, 0

    def action(self, batch: Batch) -> Tensor:
        """Return the next action f32 [b, u] of every row; rows without a planned action decide.

        Raises:
            ValueError: the number of rows changed, or the batch lacks an input.
        """
        steps = self._begin(batch)
        due = (self.age >= self.policy.n_action_steps) | (steps[:, 0] == 0)
        if due.any():
            self._decide(batch, np.flatnonzero(due), steps)
        taken = self.planned[torch.arange(self.rows), torch.as_tensor(self.age)]
        self.age += 1
        self.steps += 1
        return taken

    def chunk(self, batch: Batch) -> Tensor:
        """Return the chunks f32 [b, k, u] of the next decision in every row; errors as `action`."""
        self._decide(batch, np.arange(len(steps := self._begin(batch))), steps)
        self.age[:] = self.policy.n_action_steps
        self.steps += self.policy.n_action_steps
        return self.planned.clone()

    def _begin(self, batch: Batch) -> np.ndarray:
        """Return i64 [b, 3]: time in control steps, episode and seed of every row."""
        rows = len(batch["observation.state"])
        if not self.rows:
            _, chunk, channels = self.policy.noise_shape
            self.rows, self.first = rows, self.played
            self.played += rows
            self.state = self.policy.initial_state(rows)
            self.planned = torch.zeros(rows, chunk, channels, device=self.policy.device)
            self.age = np.full(rows, self.policy.n_action_steps)
            self.decision = np.zeros(rows, np.int64)
        if rows != self.rows:
            raise ValueError(
                f"rows: got {rows}, expected {self.rows} as before; call reset() first"
            )
        times = clock(batch)
        if times is not None:
            return times
        number = self.first + np.arange(rows)
        return np.stack([np.full(rows, self.steps), number, np.full(rows, self.seed)], 1)

    def _decide(self, batch: Batch, rows: np.ndarray, steps: np.ndarray) -> None:
        """Plan again in some rows, and write their memory."""
        self.decision[rows[steps[rows, 0] == 0]] = 0
        time_s = steps[rows, 0] / self.policy.robot.control_hz
        noise = np.concatenate([
            episode_noise(seed, np.array([episode]), self.decision[row : row + 1],
                          self.policy.noise_shape)
            for row, (_, episode, seed) in zip(rows, steps[rows].tolist(), strict=True)
        ])  # fmt: skip
        obs = observation(batch, self.policy, rows, time_s)
        chosen = torch.as_tensor(rows, device=self.policy.device)
        chunk, new = self.policy.act(obs, self.state.rows(chosen), noise)
        self.planned[chosen] = chunk.values
        for name, value in new.tensors.items():
            self.state[name][chosen] = value
        self.decision[rows] += 1
        self.age[rows] = 0
