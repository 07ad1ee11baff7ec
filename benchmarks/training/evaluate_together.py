"""Success of several policies in the same episodes of a memory task, for studies.

While the task holds the arm nothing depends on a policy, and with long delays this is nearly all
of an episode. So it is simulated once for all policies, and none of them computes actions for it.
The outcomes are those of `evaluate`.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import rich.progress
import torch

from sim import vec_env
from sim.backends.mujoco_cpu import MujocoVecEnv
from sim.rollout import Outcome, rollout
from sim.vector.env_slice import SavedRows
from training.evaluation.evaluate import Player
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import Observation, PolicyState
from vla.policies.vla import VLAPolicy


class Wait(NamedTuple):
    """What happens in E environments until the arm is free."""

    decisions: list[tuple[Observation, np.ndarray]]
    """Observations of E rows, and which of them are locked, bool [e]."""
    free: SavedRows
    """The environments when all arms are free."""


def evaluate_together(
    policies: Sequence[VLAPolicy], task: PluginConfig, *, episodes: int, seed: int,
    environments: int = 32, quiet: bool = True,
) -> list[list[Outcome]]:  # fmt: skip
    """Run episodes 0 to `episodes` - 1 of `seed`; return outcomes by policy and episode.

    Their `steps` count from when the arm is free, as does `max_progress`.

    Args:
        policies: Policies for the same arm, in evaluation mode.
        task: Configuration of the task.
        episodes: Number of episodes.
        seed: Seed of the episodes.
        environments: Parallel environments.
        quiet: Show no progress bar.

    Raises:
        ValueError: no episodes or policies, policies for several arms, or one that would still
            carry out an older chunk when the arm comes free.
    """
    if not policies or episodes < 1:
        raise ValueError(
            f"policies, episodes: got {len(policies)} and {episodes}, expected 1 or more"
        )
    robots, every = {p.robot.name for p in policies}, {p.n_action_steps for p in policies}
    step = getattr(task, "decision_steps", 1)
    if len(robots) > 1 or any(step % n for n in every):
        raise ValueError(
            f"policies: got arms {sorted(robots)} and decisions every {sorted(every)} control "
            f"steps, expected one arm and divisors of the task's decision_steps, {step}"
        )
    width = math.ceil(episodes / math.ceil(episodes / environments))  # few rows left over
    env = vec_env.make(configs.type_name(task), width, robot=policies[0].robot, task_config=task)
    found: list[list[Outcome]] = [[] for _ in policies]
    with contextlib.closing(env), rich.progress.Progress(disable=quiet, transient=True) as bar:
        line = bar.add_task("evaluating", total=episodes * len(policies))
        for first in range(0, episodes, width):
            number = first + np.arange(width)
            waits = {n: wait_for_go(env, seed, number, n) for n in sorted(every)}
            for outcomes, policy in zip(found, policies, strict=True):
                ended = _finish(env, policy, waits[policy.n_action_steps], seed, number)
                ended = ended[: episodes - first]
                outcomes += ended
                bar.update(line, advance=len(ended))
    return found


def wait_for_go(env: MujocoVecEnv, seed: int, number: np.ndarray, steps: int) -> Wait:
    """Begin episodes and wait, `steps` control steps a decision, until all arms are free."""
    rows = np.arange(len(number))
    obs = env.begin(rows, np.full(len(rows), seed), number)
    home = np.array(env.spec.robot.home, np.float32)
    actions = np.broadcast_to(home, (len(rows), steps, len(home)))
    decisions = []
    while (locked := env.is_locked()).any():
        decisions.append((obs, locked))
        obs = env.step_chunk(actions, None, ~locked).obs
    return Wait(decisions, env.save())


def _finish(
    env: MujocoVecEnv, policy: VLAPolicy, wait: Wait, seed: int, number: np.ndarray
) -> list[Outcome]:
    """Let a policy see the wait, then act; return the outcomes in the order of the rows."""
    player = Player(policy, len(number), seed)
    for obs, locked in wait.decisions:
        player.state = _where(locked, policy.observe(obs, player.state), player.state)
        player.decision += locked
    obs = env.restore(wait.free)

    def act(seen: Observation, row: np.ndarray) -> np.ndarray:
        return player.decide(seen, number[0] + row)

    played = rollout(env, obs, act, len(number))
    ended = sorted(outcome for part in played for outcome in part.ended)
    return [outcome._replace(number=int(number[0]) + outcome.number) for outcome in ended]


def _where(rows: np.ndarray, one: PolicyState, other: PolicyState) -> PolicyState:
    """Return some rows, bool [e], of one state and all others of another one."""
    chosen = torch.as_tensor(rows)
    return PolicyState(
        tensors={
            name: torch.where(chosen.view(-1, *(1,) * (part.dim() - 1)), part, other[name])
            for name, part in one.tensors.items()
        }
    )
