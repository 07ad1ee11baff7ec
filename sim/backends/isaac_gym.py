"""Our tasks on Isaac Gym Preview 4, in the interpreter where it is installed: one sim of it."""

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
    """Always 1: a process of Isaac Gym holds one sim, with all worlds."""
    randomize: bool = True
    """Whether episodes differ: in colours, and where MuJoCo draws in light and camera pose too."""
    python: str = ""
    """The interpreter in which Isaac Gym is installed (3.6 to 3.8; 3.8 here)."""
    device: str = "cuda:0"
    """"cuda:N", or "cpu" for PhysX on the processor."""
    pictures: Literal["engine", "mujoco"] = "engine"
    """Who draws: Isaac Gym's cameras, or MuJoCo in this process, as in the other backends."""
    open_s: float = 300.0
    """Seconds that it may take to start."""
    call_s: float = 120.0
    """Seconds that a step may take."""

    live: ClassVar[bool] = False
    """Whether there is one arm alone, in real time."""

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> BatchVecEnv:
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, there is no such interpreter, or Isaac Gym cannot
                hold the task's scene.
        """
        return hosted.build(
            task, robot, num_envs, "isaac_gym", self,
            {"device": self.device, "draws": self.pictures == "engine"},
        )  # fmt: skip
