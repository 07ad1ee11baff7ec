"""Environments on MuJoCo's own physics on the CPU, in this process or spread over workers."""

import dataclasses
from typing import ClassVar

import numpy as np

from sim.core import step_buffers
from sim.core.privileged_state import PrivilegedState
from sim.core.scene import compile_scene
from sim.core.task import HasReferents
from sim.vector import workers
from sim.vector.env_slice import EnvSlice, SavedRows
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec
from vla.contracts.types import EnvStep, Observation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Processes that share the environments; 1 stays in this process."""
    randomize: bool = True
    """Whether episodes differ in colour, light, camera pose, friction and mass."""

    is_realtime: ClassVar[bool] = False

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> "MujocoVecEnv":
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, or the robot's model does not fit its RobotSpec.
        """
        step_buffers.check_workers(self.workers, num_envs)
        return MujocoVecEnv(task, robot, num_envs, self)


class MujocoVecEnv:
    """Satisfies `VecEnv`, `HasPrivilegedState`, `TellsReferents` of `vla.contracts.protocols`."""

    def __init__(self, task: PluginConfig, robot: RobotSpec, num_envs: int, config: Config) -> None:
        """Start the environments; call `reset` or `begin` before the first step."""
        scene = compile_scene(task, robot)
        self.num_envs = num_envs
        self.spec = step_buffers.env_spec(scene, type_name(task))
        self.privileged_state_names = PrivilegedState(scene).names
        """What each number of `privileged_state` is."""
        self.has_referents = isinstance(scene.task, HasReferents)
        """Whether there are `referents`."""
        self._instructions = np.array(scene.task.instructions, dtype=object)
        self._envs: EnvSlice | workers.Pool
        if config.workers == 1:
            self._buffers = step_buffers.allocate(step_buffers.layout(scene, num_envs))
            self._envs = EnvSlice(
                scene, self._buffers, range(num_envs), num_envs, vary=config.randomize
            )
        else:
            self._envs = workers.Pool(task, robot, num_envs, config.workers, config.randomize)
            self._buffers = self._envs.buffers
        self._started = np.zeros(num_envs, np.bool_)

    @property
    def render_time_s(self) -> float:
        """Seconds spent on rendering so far, by environments of this process."""
        return self._envs.render_time_s if isinstance(self._envs, EnvSlice) else 0.0

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0)."""
        return self.begin(*step_buffers.first_episodes(self.num_envs, seed))

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows; see `vla.contracts.protocols.VecEnv`."""
        rows, seed, index = step_buffers.checked_start(self.num_envs, rows, seed, index)
        self._envs.begin(rows, seed, index)
        self._started[rows] = True
        images = self._buffers["images"].copy()
        return step_buffers.observation(self._buffers, images, self._instructions)

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets, float32, shape (e, u)) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> EnvStep:
        """Apply up to h actions and observe at the end; see `vla.contracts.protocols.VecEnv`."""
        actions = step_buffers.checked_actions(
            actions,
            use_expert,
            frozen,
            started=self._started,
            channels=len(self.spec.robot.channels),
        )
        self._envs.step(actions, use_expert, frozen)
        images = self._buffers["images"].copy()
        return step_buffers.env_step(
            self._buffers, images, None, self._instructions, actions.shape[1]
        )

    def save(self) -> SavedRows:
        """Return a copy of all environments as they are, for `restore`.

        Raises:
            ValueError: a row has not begun, or the environments are spread over workers.
        """
        step_buffers.check_started(np.atleast_1d(self._started.all()), "save")
        return self._here("save").save()

    def restore(self, saved: SavedRows) -> Observation:
        """Set all environments to a copy of themselves; return what was observed then."""
        self._here("restore").restore(saved)
        images = self._buffers["images"].copy()
        return step_buffers.observation(self._buffers, images, self._instructions)

    def is_locked(self) -> np.ndarray:
        """Return where the task holds the arm whatever is commanded, bool [e]."""
        step_buffers.check_started(self._started, "is_locked")
        return self._here("is_locked").is_locked()

    def _here(self, method: str) -> EnvSlice:
        if not isinstance(self._envs, EnvSlice):
            raise ValueError(
                f"{method}: got environments in several processes, expected one; make them with "
                "workers=1"
            )
        return self._envs

    def privileged_state(self) -> np.ndarray:
        """Return f32 [e, p]; see `vla.contracts.protocols.HasPrivilegedState`."""
        step_buffers.check_started(self._started)
        self._envs.write_privileged_state()
        return self._buffers["privileged_state"].copy()

    def referents(self) -> np.ndarray:
        """Return f32 [e, v, r, 2]; see `vla.contracts.protocols.TellsReferents`."""
        step_buffers.check_started(self._started, "referents")
        self._envs.write_referents()
        return self._buffers["referents"].copy()

    def close(self) -> None:
        """End worker processes, if any; the environments cannot be used afterwards."""
        self._started[:] = False
        if isinstance(self._envs, workers.Pool):
            self._envs.close()
