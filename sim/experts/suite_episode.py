"""Records one episode of a suite's own expert, with images, as arrays; writes no files."""

import contextlib
import functools
from typing import Any

import numpy as np

from sim import vec_env
from sim.experts.episode import EpisodeRecord
from vla.contracts import referents
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


def check(task: PluginConfig, behaviour: str, visual_shift: str = "none") -> None:
    """Raise ValueError unless a suite supports a behaviour in a task: "expert", if it has one.

    The simulator is started and ended, so that its errors appear before workers start.
    """
    name = vec_env.title(task)
    if behaviour != "expert":
        raise ValueError(f"behaviour: got {behaviour!r} for {name}, expected 'expert'")
    if visual_shift != "none":
        raise ValueError(f"visual_shift: got {visual_shift!r} for {name}, expected 'none'")
    with contextlib.closing(vec_env.make(name, 1, task_config=task)) as env:
        if not env.has_expert:
            raise ValueError(
                f"{name}: its suite has no scripted expert to demonstrate it; train on a "
                "recorded data set with --dataset"
            )


def record_episode(
    task: str, seed: int, index: int, behaviour: str, robot: RobotSpec, task_config: PluginConfig,
    visual_shift: str = "none", recovery_fraction: float = 0.0,
) -> EpisodeRecord:  # fmt: skip
    """Record episode `index` of `seed` of the suite's expert; equal arguments give equal bits.

    It replaces `sim.experts.episode.record_episode` for suites; call `check` first.

    Raises:
        RuntimeError: the simulator died.
    """
    env = _env(task_config)
    nothing = np.zeros((1, 1, len(robot.channels)), np.float32)
    seen: list[tuple[Any, ...]] = []
    obs = env.begin(np.zeros(1, np.int64), np.array([seed]), np.array([index]))
    labels: list[np.ndarray] = []
    instruction, progress, over = obs.task[0], 0.0, False
    while not over:
        if env.has_referents:
            labels.append(env.referents()[0].ravel())
        step = env.step_chunk(nothing, np.ones(1, np.bool_))
        seen.append((obs.images[0], obs.proprio[0], step.info["actions"][0, 0], False, progress))
        over = bool(step.terminated[0] | step.truncated[0])
        obs, progress = step.final_obs if over else step.obs, float(step.info["progress"][0])
    done = bool(step.info["success"][0])
    seen.append((obs.images[0], obs.proprio[0], seen[-1][2], done, progress))
    labels += labels[-1:]  # another episode has begun
    images, proprio, action, success, grade = (np.stack(part) for part in zip(*seen, strict=True))
    return EpisodeRecord(
        images=images, proprio=proprio, action=action, success=success.astype(np.bool_),
        progress=grade.astype(np.float32), instruction=instruction, behaviour=behaviour,
        labels=referents.by_column(robot, labels),
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _env(task: PluginConfig) -> Any:
    """Return one environment of a task, cached for the next episode."""
    return vec_env.make(vec_env.title(task), 1, task_config=task)
