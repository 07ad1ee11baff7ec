"""Drives rows of arms one control step at a time: memory, noise and time of a policy keep step.

What `training.evaluate.Player` does by the chunk, for callers who ask at every control step and
restart rows without a word.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lerobot_policy_mneme.batch import Batch, clock, observation
from vla.contracts.types import PolicyState
from vla.noise import episode_noise
from vla.policies.vla import VLAPolicy


class Player:
    """Holds what a policy carries from call to call.

    Time, number and seed of an episode come from the clock of our environments, and a row whose
    time is 0 has begun anew. Without one (an arm, other people's environments) time is the number
    of calls since `reset`.

    Args:
        policy: In evaluation mode.
        seed: Of the noise, where there is no clock.
    """

    def __init__(self, policy: VLAPolicy, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.played = 0
        self.reset()

    def reset(self) -> None:
        """Begin new episodes in all rows."""
        self.rows, self.steps = 0, 0

    def action(self, batch: Batch) -> Tensor:
        """Return the next action f32 [b, u] of every row; rows that have none left decide.

        Raises:
            ValueError: other rows than before, or the policy does not see what it needs.
        """
        steps = self._begin(batch)
        due = (self.age >= self.policy.execute) | (steps[:, 0] == 0)
        if due.any():
            self._decide(batch, np.flatnonzero(due), steps)
        taken = self.planned[torch.arange(self.rows), torch.as_tensor(self.age)]
        self.age += 1
        self.steps += 1
        return taken

    def chunk(self, batch: Batch) -> Tensor:
        """Return chunks f32 [b, k, u] of a decision in every row: the next of each episode.

        Raises:
            ValueError: as `action`.
        """
        self._decide(batch, np.arange(len(steps := self._begin(batch))), steps)
        self.age[:] = self.policy.execute
        self.steps += self.policy.execute
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
            self.age = np.full(rows, self.policy.execute)
            self.decision = np.zeros(rows, np.int64)
        if rows != self.rows:
            raise ValueError(f"got {rows} rows, {self.rows} before; call reset() in between")
        told = clock(batch)
        if told is not None:
            return told
        number = self.first + np.arange(rows)
        return np.stack([np.full(rows, self.steps), number, np.full(rows, self.seed)], 1)

    def _decide(self, batch: Batch, rows: np.ndarray, steps: np.ndarray) -> None:
        """Plan anew in some rows, and write their memory."""
        self.decision[rows[steps[rows, 0] == 0]] = 0
        time_s = steps[rows, 0] / self.policy.robot.control_hz
        noise = np.concatenate([
            episode_noise(seed, np.array([episode]), self.decision[row : row + 1],
                          self.policy.noise_shape)
            for row, (_, episode, seed) in zip(rows, steps[rows].tolist(), strict=True)
        ])  # fmt: skip
        seen = observation(batch, self.policy, rows, time_s)
        chosen = torch.as_tensor(rows, device=self.policy.device)
        chunk, new = self.policy.act(seen, _rows(self.state, chosen), noise)
        self.planned[chosen] = chunk.values
        for name in ("tokens", "slot_time", "slot_count"):
            getattr(self.state, name)[chosen] = getattr(new, name)
        self.decision[rows] += 1
        self.age[rows] = 0


def _rows(state: PolicyState, rows: Tensor) -> PolicyState:
    return replace(
        state, tokens=state.tokens[rows], slot_time=state.slot_time[rows],
        slot_count=state.slot_count[rows],
    )  # fmt: skip
