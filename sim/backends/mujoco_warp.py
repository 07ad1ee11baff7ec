"""Environments on mujoco_warp: thousands of worlds in one process, on a GPU or on the CPU."""

import dataclasses
import importlib
from typing import Any, ClassVar, Literal

from sim.core import step_buffers
from sim.core.scene import Scene, compile_scene
from sim.engines.batch import BatchVecEnv
from sim.engines.engine import Engine
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Always 1: all worlds are stepped together, in this process."""
    randomize: bool = True
    """Whether episodes differ in colour, light, camera pose, friction and mass."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of physics and rendering; "auto" is the GPU if there is one."""
    contacts_per_world: int = 48
    """Contacts that an environment may have; with more, its episode ends as a fault."""
    constraints_per_world: int = 256
    """Rows of constraints that it may have: 4 to 6 for each contact, and those of joints."""

    is_realtime: ClassVar[bool] = False

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> BatchVecEnv:
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, mujoco_warp is missing or cannot simulate the
                scene, or there is no GPU where one is wanted.
        """
        step_buffers.check_num_envs(num_envs)
        if self.workers != 1:
            raise ValueError(
                f"workers: got {self.workers}, expected 1: mujoco_warp steps all environments "
                "together, in one process"
            )
        validate_min(self, contacts_per_world=1, constraints_per_world=1)
        engine = self.engine(compile_scene(task, robot), num_envs)
        return BatchVecEnv(task, robot, num_envs, engine, randomize=self.randomize)

    def find_device(self) -> str:
        """Return the name of Warp's device.

        Raises:
            ValueError: mujoco_warp is missing, or a GPU is wanted and there is none.
        """
        return _load("sim.engines.warp_start").find_device(self.device)

    def engine(self, scene: Scene, num_worlds: int) -> Engine:
        """Return the physics engine alone.

        Raises:
            ValueError: as `build`.
        """
        device = self.find_device()
        return _load("sim.engines.warp_engine").WarpEngine(
            scene,
            num_worlds,
            device=device,
            contacts_per_world=self.contacts_per_world,
            constraints_per_world=self.constraints_per_world,
        )


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("warp", "mujoco_warp"):
            raise
        raise ValueError(
            f"backend 'mujoco_warp': no module named {error.name!r}; install it (pip install "
            "'mneme-vla[sim]')"
        ) from error
