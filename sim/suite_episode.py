"""Records one episode of a suite's own expert, with images, as arrays; writes no files."""

import contextlib
import functools
from typing import Any

import numpy as np

from sim import vec_env
from sim.episode import EpisodeRecord
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


def check(task: PluginConfig, behaviour: str, looks: str = "usual") -> None:
    """Raise ValueError unless the suite plays a behaviour in a task: "expert", if it has one.

    The simulator is started and ended again, so that what it refuses is told at once.
    """
    name = vec_env.title(task)
    if behaviour != "expert":
        raise ValueError(f"behaviour: got {behaviour!r} for {name}, expected 'expert'")
    if looks != "usual":
        raise ValueError(f"looks: got {looks!r} for {name}, expected 'usual'")
    with contextlib.closing(vec_env.make(name, 1, task_config=task)) as env:
        if not env.has_expert:
            raise ValueError(
                f"{name}: its suite has no scripted expert to demonstrate it; learn from a data "
                "set of its own with --data"
            )


def record_episode(
    task: str, seed: int, index: int, behaviour: str, robot: RobotSpec, task_config: PluginConfig,
    looks: str = "usual",
) -> EpisodeRecord:  # fmt: skip
    """Play episode `index` of `seed` with the suite's expert; the same arguments, the same bits.

    Like `sim.episode.record_episode`, whose place it takes; `check` has seen the arguments.

    Raises:
        RuntimeError: the simulator died.
    """
    env = _env(task_config)
    nothing = np.zeros((1, 1, len(robot.channels)), np.float32)
    seen: list[tuple[Any, ...]] = []
    obs = env.begin(np.zeros(1, np.int64), np.array([seed]), np.array([index]))
    instruction, progress, over = obs.task[0], 0.0, False
    while not over:
        step = env.step_chunk(nothing, np.ones(1, np.bool_))
        seen.append((obs.images[0], obs.proprio[0], step.info["actions"][0, 0], False, progress))
        over = bool(step.terminated[0] | step.truncated[0])
        obs, progress = step.final_obs if over else step.obs, float(step.info["progress"][0])
    done = bool(step.info["success"][0])
    seen.append((obs.images[0], obs.proprio[0], seen[-1][2], done, progress))
    images, proprio, action, success, grade = (np.stack(part) for part in zip(*seen, strict=True))
    return EpisodeRecord(
        images=images, proprio=proprio, action=action, success=success.astype(np.bool_),
        progress=grade.astype(np.float32), instruction=instruction, behaviour=behaviour,
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _env(task: PluginConfig) -> Any:
    """Return one environment of a task, kept for the next episode."""
    return vec_env.make(vec_env.title(task), 1, task_config=task)
