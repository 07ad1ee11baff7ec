"""Success rate of a policy over numbered episodes, for `vla eval` and for training runs.

Episode k of a seed and the policy's noise in it do not depend on the number of parallel
environments, so the result does not depend on the batch size.
"""

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import rich.progress

from sim import vec_env
from sim.rollout import Outcome, rollout
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation, PolicyState
from vla.runtime.noise import episode_noise
from vla.utils import statistics
from vla.utils.arrays import to_numpy


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Outcome of every episode, in the order of their numbers."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    success: list[bool]
    progress: list[float]
    """Progress by the simulator at the end of each episode, in [0, 1]."""
    steps: list[int]
    """Length of each episode in control steps."""
    decided: list[bool]
    """Whether each episode was terminated by the task's rules rather than truncated."""
    seconds: float
    """Wall time of the evaluation."""
    goals: list[int] = dataclasses.field(default_factory=list)
    """Index of the goal of each episode, in a task that has several; else -1."""
    achieved: list[int] = dataclasses.field(default_factory=list)
    """Index of the goal that each episode reached; -1 for none."""
    max_progress: list[float] = dataclasses.field(default_factory=list)
    """Highest progress after any decision of each episode."""
    robot: str = ""
    """The arm, by name."""

    @property
    def metric(self) -> str:
        """Name of what `rate` measures."""
        return "success"

    @property
    def rate(self) -> float:
        """Fraction of successful episodes."""
        return sum(self.success) / len(self.success)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the rate."""
        return statistics.wilson(sum(self.success), len(self.success))

    def summary(self) -> str:
        """Return the result as one sentence."""
        low, high = self.interval
        return (
            f"{configs.title(self.task)}: {sum(self.success)} of {len(self.success)} episodes "
            f"succeeded, {self.rate:.1%} (95 % interval {low:.1%} to {high:.1%}), seed {self.seed}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all fields with rate and interval as JSON types."""
        return {**dataclasses.asdict(self), "rate": self.rate, "interval": list(self.interval)}


@dataclass(frozen=True, kw_only=True)
class MultiTaskEvaluation(Evaluation):
    """Outcome of every episode of a task, and of further tasks of the same policy."""

    others: list[Evaluation]
    """Those of the further tasks."""

    @classmethod
    def of(cls, first: Evaluation, others: list[Evaluation]) -> "MultiTaskEvaluation":
        """Return the evaluations of a policy's tasks as one."""
        fields = {f.name: getattr(first, f.name) for f in dataclasses.fields(first)}
        fields["seconds"] += sum(other.seconds for other in others)
        return cls(**fields, others=others)

    @property
    def rate(self) -> float:
        """Mean of the tasks' fractions of successful episodes."""
        rates = [super().rate, *(other.rate for other in self.others)]
        return sum(rates) / len(rates)

    def summary(self) -> str:
        """Return a line for each task, with each arm."""
        parts = [self._first(), *self.others]
        several = len({part.robot for part in parts}) > 1
        return "\n".join(f"{part.robot} " * several + part.summary() for part in parts)

    def to_json(self) -> dict[str, Any]:
        """Return the first task's fields, rate and interval, and those of the others, as JSON."""
        others = [other.to_json() for other in self.others]
        return {**self._first().to_json(), "others": others, "mean_rate": self.rate}

    def _first(self) -> Evaluation:
        names = [f.name for f in dataclasses.fields(Evaluation)]
        return Evaluation(**{name: getattr(self, name) for name in names})


class Player:
    """Runs a policy in E environments and keeps its memory and noise in step with them.

    Args:
        policy: Policy in evaluation mode.
        environments: E.
        seed: Seed of the noise.
        attempt: 0 to act; the number of an attempt, from 1, to sample actions as online RL does.
    """

    def __init__(self, policy: ArmPolicy, environments: int, seed: int, attempt: int = 0) -> None:
        self.policy, self.environments, self.seed = policy, environments, seed
        self.attempt = attempt
        self.state: PolicyState = policy.initial_state(environments)
        self.decision = np.zeros(environments, np.int64)
        self._calls, self._chunk = 0, np.empty(0, np.float32)

    def step_actions(self, obs: Observation, episode: np.ndarray) -> np.ndarray:
        """Return the actions f32 [e, 1, u] of one control step, for episodes that started together:
        as `decide` does, with every `n_action_steps`-th observation.
        """
        at = self._calls % self.policy.n_action_steps
        if at == 0:
            self._chunk = self.decide(obs, episode)
        self._calls += 1
        return self._chunk[:, at : at + 1]

    def decide(self, obs: Observation, episode: np.ndarray) -> np.ndarray:
        """Return the actions f32 [e, h, u] to execute before the next decision.

        Args:
            obs: Batch of E observations; rows at time 0 begin an episode.
            episode: i64 [e], number of the episode of each row.
        """
        self.decision[np.asarray(obs.time_s) == 0] = 0
        shape = self.policy.noise_shape
        noise = episode_noise(self.seed, episode, self.decision, shape, self.attempt)
        if self.attempt:
            sampled: Any = self.policy  # only trainable policies are sampled
            chunk, _, self.state = sampled.sample(obs, self.state, noise)
        else:
            chunk, self.state = self.policy.act(obs, self.state, noise)
        self.decision += 1
        return to_numpy(chunk.values)[:, : self.policy.n_action_steps]


def evaluate(
    policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int, environments: int = 32,
    attempt: int = 0, quiet: bool = True, backend: PluginConfig | None = None,
) -> Evaluation:  # fmt: skip
    """Run episodes 0 to `episodes` - 1 of `seed` and return their outcomes.

    Args:
        policy: Policy in evaluation mode.
        task: Configuration of the task.
        episodes: Number of episodes.
        seed: Seed of the episodes; train and evaluate on different seeds.
        environments: Parallel environments.
        attempt: Number, from 1, of an attempt with sampled actions as in online RL; 0 to act.
        quiet: Show no progress bar.
        backend: `Config` of a file in `sim/backends`; MuJoCo in this process if None.

    Raises:
        ValueError: no episodes, another robot than in training, or an arm that was stopped.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    width = 1 if backend and backend.is_realtime else min(environments, episodes)
    begin = time.perf_counter()
    env = vec_env.make(
        configs.type_name(task), width, robot=policy.robot, task_config=task,
        backend=backend or vec_env.DEFAULT_BACKEND,
    )  # fmt: skip
    ended: list[Outcome] = []
    with contextlib.closing(env), rich.progress.Progress(disable=quiet, transient=True) as bar:
        line = bar.add_task(f"attempt {attempt}" if attempt else "evaluating", total=episodes)
        act = Player(policy, width, seed, attempt).decide
        for played in rollout(env, env.reset(seed), act, episodes, freeze_idle=False):
            ended += played.ended
            bar.update(line, completed=len(ended))
    ended.sort()
    return Evaluation(
        task=configs.to_json(task), seed=seed, success=[o.success for o in ended],
        progress=[o.progress for o in ended], steps=[o.steps for o in ended],
        decided=[o.terminated for o in ended], goals=[o.goal for o in ended],
        achieved=[o.achieved for o in ended], seconds=time.perf_counter() - begin,
        robot=policy.robot.name, max_progress=[o.max_progress for o in ended],
    )  # fmt: skip
