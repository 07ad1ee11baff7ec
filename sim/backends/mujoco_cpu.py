"""Environments on MuJoCo's own physics on the CPU, in this process or spread over workers."""

import dataclasses
from typing import ClassVar

import numpy as np

from sim import workers
from sim.lanes import LONGEST_CHUNK, Lanes, allocate, layout
from sim.scene import Scene, compile_scene
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import EnvSpec, RobotSpec
from vla.contracts.types import EnvStep, Observation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Processes among which environments are shared out; 1 stays in this process."""
    randomize: bool = True
    """Whether episodes differ in colour, light, camera pose, friction and mass."""

    live: ClassVar[bool] = False
    """Whether there is one arm alone, in real time."""

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> "MujocoVecEnv":
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, or the robot's model does not fit its RobotSpec.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
        if not 1 <= self.workers <= num_envs:
            raise ValueError(
                f"workers: got {self.workers}, expected 1 to {num_envs}, the number of environments"
            )
        return MujocoVecEnv(task, robot, num_envs, self)


class MujocoVecEnv:
    """Satisfies `vla.contracts.protocols.VecEnv`; also steps whole action chunks."""

    def __init__(self, task: PluginConfig, robot: RobotSpec, num_envs: int, config: Config) -> None:
        """Start the environments; call `reset` or `begin` before the first step."""
        scene = compile_scene(task, robot)
        self.num_envs = num_envs
        self.spec = _env_spec(scene, type_name(task))
        self._instructions = np.array(scene.task.instructions, dtype=object)
        self._lanes: Lanes | workers.Pool
        if config.workers == 1:
            self._buffers = allocate(layout(scene, num_envs))
            self._lanes = Lanes(
                scene, self._buffers, range(num_envs), num_envs, vary=config.randomize
            )
        else:
            self._lanes = workers.Pool(task, robot, num_envs, config.workers, config.randomize)
            self._buffers = self._lanes.buffers
        self._started = np.zeros(num_envs, np.bool_)

    @property
    def render_s(self) -> float:
        """Seconds spent on pictures so far, by environments of this process."""
        return self._lanes.render_s if isinstance(self._lanes, Lanes) else 0.0

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0)."""
        if seed < 0:
            raise ValueError(f"seed: got {seed}, expected 0 or more")
        self._lanes.reset(seed)
        self._started[:] = True
        return self._observation("")

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows at once; what they were at is dropped.

        Args:
            rows: i64 [n], each once.
            seed: i64 [n], seed of each one's episode, 0 or more.
            index: i64 [n], its index among those of the seed, 0 or more.

        Returns:
            What is seen in all rows now.

        Raises:
            ValueError: a number is out of range.
        """
        rows, seed, index = (np.asarray(values, np.int64) for values in (rows, seed, index))
        if np.any((rows < 0) | (rows >= self.num_envs) | (seed < 0) | (index < 0)):
            raise ValueError(
                f"begin: got rows {rows}, seeds {seed} and indices {index}, expected rows below "
                f"{self.num_envs} and nothing below 0"
            )
        self._lanes.begin(rows, seed, index)
        self._started[rows] = True
        return self._observation("")

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets, float32, shape (e, u)) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self, actions: np.ndarray, helped: np.ndarray | None = None, idle: np.ndarray | None = None
    ) -> EnvStep:
        """Apply up to h actions one after the other and observe after the last.

        An environment whose episode ends stops there, is reset, and idles for the rest.

        Args:
            actions: Position targets in physical units, float32, shape (e, h, u), 1 <= h <= 256.
            helped: Rows in which the task's scripted expert acts instead, bool, shape (e,).
            idle: Rows that stand still and cost nothing, bool, shape (e,); whatever their actions.

        Returns:
            The step; `reward` is the sum, `info["steps"]` the number of actions executed and
            `info["actions"]` which ones, float32, shape (e, h, u).

        Raises:
            ValueError: a shape is wrong or a value is not finite.
        """
        channels = len(self.spec.robot.channels)
        got = np.shape(actions)
        fits = len(got) == 3 and 1 <= got[1] <= LONGEST_CHUNK
        if not fits or got[0] != self.num_envs or got[2] != channels:
            raise ValueError(
                f"actions: got shape {got}, expected ({self.num_envs}, h, {channels}) with h from "
                f"1 to {LONGEST_CHUNK}"
            )
        for name, marks in (("helped", helped), ("idle", idle)):
            if marks is not None and np.shape(marks) != got[:1]:
                raise ValueError(
                    f"{name}: got shape {np.shape(marks)}, expected ({self.num_envs},)"
                )
        if not (self._started if idle is None else self._started | idle).all():
            raise ValueError("step before reset: call reset(seed) first")
        if not np.isfinite(actions).all():
            raise ValueError("actions: got NaN or infinity, expected finite position targets")
        self._lanes.step(np.asarray(actions, np.float32), helped, idle)
        return self._env_step(got[1])

    def close(self) -> None:
        """End worker processes, if any; the environments cannot be used afterwards."""
        self._started[:] = False
        if isinstance(self._lanes, workers.Pool):
            self._lanes.close()

    def _observation(self, prefix: str) -> Observation:
        buffers = self._buffers
        images = buffers[prefix + "images"]
        return Observation(
            images=images.copy(),
            image_ok=np.ones(images.shape[:2], np.bool_),
            proprio=buffers[prefix + "proprio"].copy(),
            task=tuple(self._instructions[buffers[prefix + "instruction"]]),
            time_s=buffers[prefix + "time_s"].copy(),
        )

    def _env_step(self, length: int) -> EnvStep:
        buffers = self._buffers
        obs = self._observation("")
        ended = buffers["terminated"] | buffers["truncated"]
        final_obs = obs
        if ended.any():
            for name in ("images", "proprio", "instruction", "time_s"):
                buffers["final_" + name][~ended] = buffers[name][~ended]
            final_obs = self._observation("final_")
        return EnvStep(
            obs=obs,
            reward=buffers["reward"].copy(),
            terminated=buffers["terminated"].copy(),
            truncated=buffers["truncated"].copy(),
            final_obs=final_obs,
            info={
                **{k: buffers[k].copy() for k in ("success", "progress", "steps", "episode")},
                "actions": buffers["actions"][:, :length].copy(),
            },
        )


def _env_spec(scene: Scene, task: str) -> EnvSpec:
    return EnvSpec(
        task=task,
        robot=scene.robot,
        instructions=scene.task.instructions,
        max_episode_steps=scene.task.max_episode_steps,
    )
