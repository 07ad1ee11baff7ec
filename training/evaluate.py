"""Success of a policy over numbered episodes: for `vla eval` and for the test of a training run.

Episode k of a seed is the same episode however many environments run side by side, and so is the
policy's noise in it: the figures do not depend on the batch.
"""

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import rich.progress

from sim import vec_env
from vla import statistics
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation, PolicyState
from vla.noise import episode_noise


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Outcome of every episode, in the order of their numbers."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    """Seed of the episodes."""
    success: list[bool]
    """Whether each episode succeeded."""
    progress: list[float]
    """Simulator's progress at the end of each episode, in [0, 1]."""
    steps: list[int]
    """Length of each episode in control steps."""
    decided: list[bool]
    """Whether the task's rules ended each episode, one way or the other; else its time was up."""
    seconds: float
    """Wall time of the evaluation."""

    @property
    def figure(self) -> str:
        """What `rate` is."""
        return "success"

    @property
    def rate(self) -> float:
        """Share of episodes that succeeded."""
        return sum(self.success) / len(self.success)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the rate."""
        return statistics.wilson(sum(self.success), len(self.success))

    def sentence(self) -> str:
        """Return the result for people."""
        low, high = self.interval
        return (
            f"{configs.title(self.task)}: {sum(self.success)} of {len(self.success)} episodes "
            f"succeeded, {self.rate:.1%} (95 % interval {low:.1%} to {high:.1%}), seed {self.seed}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything, with rate and interval, as JSON types."""
        return {**dataclasses.asdict(self), "rate": self.rate, "interval": list(self.interval)}


class Player:
    """Drives E environments with a policy, decision by decision; memory and noise keep step.

    Args:
        policy: In evaluation mode.
        environments: E.
        seed: Of the noise.
        attempt: 0 to act; the number of one of several attempts, from 1, to sample.
    """

    def __init__(self, policy: ArmPolicy, environments: int, seed: int, attempt: int = 0) -> None:
        self.policy, self.environments, self.seed = policy, environments, seed
        self.attempt = attempt
        self.state: PolicyState = policy.initial_state(environments)
        self.decision = np.zeros(environments, np.int64)

    def decide(self, obs: Observation, episode: np.ndarray) -> np.ndarray:
        """Return the actions f32 [e, h, u] to execute before the next decision.

        Args:
            obs: Batch of E observations; rows at time 0 start an episode.
            episode: i64 [e], number of the episode of each row.
        """
        self.decision[np.asarray(obs.time_s) == 0] = 0
        shape = self.policy.noise_shape
        noise = episode_noise(self.seed, episode, self.decision, shape, self.attempt)
        if self.attempt:
            sampled: Any = self.policy  # only a policy that learns is tried several times
            chunk, _, self.state = sampled.sample(obs, self.state, noise)
        else:
            chunk, self.state = self.policy.act(obs, self.state, noise)
        self.decision += 1
        values: Any = chunk.values[:, : self.policy.execute]
        return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def evaluate(
    policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int, environments: int = 32,
    attempt: int = 0, quiet: bool = True, backend: PluginConfig | None = None,
) -> Evaluation:  # fmt: skip
    """Run episodes 0 to `episodes` - 1 of `seed` and return their outcomes.

    Args:
        policy: In evaluation mode.
        task: Configuration of the task.
        episodes: How many.
        seed: Episodes of one seed never change; train and test on different ones.
        environments: How many run side by side.
        attempt: Number, from 1, of one of several attempts, sampled as in practice; 0 to act.
        quiet: Show no progress bar.
        backend: Where: the `Config` of a file in `sim/backends`; MuJoCo in this process if None.

    Raises:
        ValueError: no episodes, a robot the policy was not trained for, or an arm that was stopped.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    width = 1 if backend and backend.live else min(environments, episodes)
    begin = time.perf_counter()
    outcomes: dict[int, tuple[bool, float, int, bool]] = {}
    env = vec_env.make(
        configs.type_name(task), width, robot=policy.robot, task_config=task,
        backend=backend or vec_env.DEFAULT_BACKEND,
    )  # fmt: skip
    with contextlib.closing(env):
        player, obs = Player(policy, width, seed, attempt), env.reset(seed)
        episode, length = np.arange(width), np.zeros(width, np.int64)
        with rich.progress.Progress(disable=quiet, transient=True) as bar:
            what = f"try {attempt}" if attempt else "evaluating"
            line = bar.add_task(what, total=episodes)
            while len(outcomes) < episodes:
                step = env.step_chunk(player.decide(obs, episode))
                length += step.info["steps"]
                ended = step.terminated | step.truncated
                for e in np.flatnonzero(ended & (episode < episodes)):
                    success, progress = step.info["success"][e], step.info["progress"][e]
                    outcomes[int(episode[e])] = (
                        bool(success), float(progress), int(length[e]), bool(step.terminated[e]),
                    )  # fmt: skip
                episode, length = episode + width * ended, length * ~ended
                obs = step.obs
                bar.update(line, completed=len(outcomes))
    rows = [outcomes[k] for k in range(episodes)]
    return Evaluation(
        task=configs.to_json(task), seed=seed, success=[r[0] for r in rows],
        progress=[r[1] for r in rows], steps=[r[2] for r in rows],
        decided=[r[3] for r in rows], seconds=time.perf_counter() - begin,
    )  # fmt: skip
