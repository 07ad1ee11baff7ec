"""Our tasks on Isaac Lab, 2.3 or 3.x, in the interpreter where it is installed: one app of it."""

import dataclasses
from typing import ClassVar, Literal

from sim.engines import hosted
from sim.engines.batch import BatchVecEnv
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Always 1: a process of Isaac Lab holds one app, with all worlds."""
    randomize: bool = True
    """Whether episodes differ: in colours and camera pose, and where MuJoCo draws in light too."""
    python: str = ""
    """The interpreter in which Isaac Lab is installed: `python` of its environment, or the script
    with which Isaac Sim starts one."""
    device: str = "cuda:0"
    """"cuda:N" or "cpu", for physics."""
    pictures: Literal["engine", "mujoco"] = "engine"
    """Who draws: Isaac Lab's tiled cameras, or MuJoCo in this process, as in the other backends."""
    open_s: float = 900.0
    """Seconds that it may take to start; the first time it compiles shaders."""
    call_s: float = 300.0
    """Seconds that a step may take."""

    live: ClassVar[bool] = False
    """Whether there is one arm alone, in real time."""

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> BatchVecEnv:
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, there is no such interpreter, or Isaac Lab cannot
                hold the task's scene.
        """
        return hosted.build(
            task, robot, num_envs, "isaac_lab", self,
            {"device": self.device, "draws": self.pictures == "engine"},
        )  # fmt: skip
