"""Environments on MuJoCo's own physics on the CPU, in this process or spread over workers."""

import dataclasses
from typing import ClassVar

import numpy as np

from sim import report, workers
from sim.lanes import Lanes
from sim.scene import compile_scene
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec
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
        report.check_num_envs(num_envs)
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
        self.spec = report.env_spec(scene, type_name(task))
        self._instructions = np.array(scene.task.instructions, dtype=object)
        self._lanes: Lanes | workers.Pool
        if config.workers == 1:
            self._buffers = report.allocate(report.layout(scene, num_envs))
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
        report.check_seed(seed)
        self._lanes.reset(seed)
        self._started[:] = True
        return self._observation()

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
        rows, seed, index = report.checked_start(self.num_envs, rows, seed, index)
        self._lanes.begin(rows, seed, index)
        self._started[rows] = True
        return self._observation()

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
        actions = report.checked_actions(
            actions, helped, idle, started=self._started, channels=len(self.spec.robot.channels)
        )
        self._lanes.step(actions, helped, idle)
        return self._env_step(actions.shape[1])

    def close(self) -> None:
        """End worker processes, if any; the environments cannot be used afterwards."""
        self._started[:] = False
        if isinstance(self._lanes, workers.Pool):
            self._lanes.close()

    def _observation(self) -> Observation:
        images = self._buffers["images"].copy()
        return report.observation(self._buffers, images, self._instructions)

    def _env_step(self, length: int) -> EnvStep:
        buffers = self._buffers
        images = final_images = buffers["images"].copy()
        ended = buffers["terminated"] | buffers["truncated"]
        if ended.any():
            final_images = images.copy()
            final_images[ended] = buffers["final_images"][ended]
        return report.env_step(buffers, images, final_images, self._instructions, length)
