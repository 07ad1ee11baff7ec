"""Runs numbered episodes in a batch of environments: the loop of evaluations and studies."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from vla.contracts.types import EnvStep, Observation

Act = Callable[[Observation, np.ndarray], np.ndarray]
"""Maps an observation of E rows and the number of each row's episode, i64 [e], to actions
f32 [e, h, u]; rows at time 0 start an episode. All h actions run before the next call."""


class Outcome(NamedTuple):
    """Result of one episode."""

    number: int
    """Number among the episodes of the seed."""
    success: bool
    """Whether it succeeded."""
    progress: float
    """Simulator's progress at the end, in [0, 1]."""
    steps: int
    """Length in control steps."""
    terminated: bool
    """Whether the task's rules ended it; else the time limit did."""
    fault: bool
    """Whether its simulation failed."""
    goal: int = -1
    """Index of the goal, in a task that has several."""
    achieved: int = -1
    """Index of the goal that was reached; -1 for none."""
    max_progress: float = 0.0
    """Highest progress after any decision."""


class Played(NamedTuple):
    """One call of `step_chunk`."""

    actions: np.ndarray
    """The actions of `act`, f32 [e, h, u]."""
    step: EnvStep
    """The result of `step_chunk`."""
    running: np.ndarray
    """Rows whose episode counts, bool [e]."""
    ended: list[Outcome]
    """Episodes that ended in it."""


def rollout(
    env: Any,
    obs: Observation,
    act: Act,
    episodes: int,
    *,
    expert: bool = False,
    freeze_idle: bool = True,
) -> Iterator[Played]:
    """Run episodes 0 to `episodes` - 1 of a seed and yield every step.

    Row i of E plays the episodes i, i + E, i + 2E and so on, one after the other.

    Args:
        env: A `vla.contracts.protocols.VecEnv`.
        obs: Result of `env.reset(seed)`.
        act: The policy of all rows.
        episodes: Number of episodes.
        expert: Whether the environments' expert acts in place of `act`.
        freeze_idle: Whether rows without a remaining episode stand still; else they run further
            episodes that do not count, as simulators need that step all rows together.
    """
    width = len(obs.task)
    number, steps, highest = np.arange(width), np.zeros(width, np.int64), np.zeros(width)
    while (running := number < episodes).any():
        actions = act(obs, number)
        step = env.step_chunk(
            actions, running if expert else None, ~running if freeze_idle else None
        )
        over, info = step.terminated | step.truncated, step.info
        steps, highest = steps + info["steps"], np.fmax(highest, info["progress"])
        fault = info.get("fault", np.zeros(width, np.bool_))
        goals = [info.get(name, np.full(width, -1)) for name in ("goal", "achieved")]
        ended = [
            Outcome(
                number=int(number[e]), success=bool(info["success"][e]), steps=int(steps[e]),
                progress=float(info["progress"][e]), terminated=bool(step.terminated[e]),
                fault=bool(fault[e]), goal=int(goals[0][e]), achieved=int(goals[1][e]),
                max_progress=float(highest[e]),
            )
            for e in np.flatnonzero(running & over)
        ]  # fmt: skip
        yield Played(actions, step, running, ended)
        number, steps, highest = number + width * over, steps * ~over, highest * ~over
        obs = step.obs


def outcomes(env: Any, obs: Observation, act: Act, episodes: int, **more: bool) -> list[Outcome]:
    """Return the results of the episodes of a `rollout` in the order of their numbers."""
    ended = [o for played in rollout(env, obs, act, episodes, **more) for o in played.ended]
    return sorted(ended)
