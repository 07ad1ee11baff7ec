"""Our tasks on Newton, NVIDIA's engine under Isaac Lab 3, in its own interpreter; CPU or GPU."""

import dataclasses
from typing import ClassVar, Literal

from sim import environments
from sim.engines import hosted
from sim.engines.batch import BatchVecEnv
from sim.environments import Environment
from vla.contracts import registry
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.specs import RobotSpec

ENVIRONMENT = Environment(
    pythons=("3.11", "3.12"),
    requirements=(
        "absl-py==2.5.1", "etils==1.15.0", "fsspec==2026.9.0", "glfw==2.11.0", "mujoco==3.17.0",
        "mujoco-warp==3.17.0", "newton==1.8.0", "numpy==2.4.6", "pyopengl==3.1.10",
        "typing-extensions==4.16.0", "warp-lang==1.19.0", "websockets==17.4", "zipp==4.1.2",
    ),
    sample="reach",
)  # fmt: skip

PACKAGE = "newton"
TASKS = registry.names("sim.tasks")
HAS_EXPERT = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Always 1: all worlds are in one process of Newton's."""
    randomize: bool = True
    """Whether episodes differ in colour, light, camera pose, friction and mass; light does not
    where Newton draws."""
    python: str = ""
    """The interpreter that has Newton; empty: that of `vla env add newton`."""
    device: str = ""
    """Of Warp, such as "cpu" or "cuda:0"; empty: the first GPU, or the processor."""
    pictures: Literal["mujoco", "engine"] = "mujoco"
    """Who draws: MuJoCo in this process, the same pictures as the other backends; or Newton's ray
    tracer, all worlds at once, in which colours look somewhat different."""
    contacts: int = 64
    """Room for contacts in each world. Newton's own guess is what the scene has at rest: too little
    for a hand that holds something."""
    constraints: int = 400
    """Room for rows of constraints in each world: up to ten for each contact."""
    open_s: float = 300.0
    """Seconds that Newton may take to start."""
    call_s: float = 300.0
    """Seconds that a step may take; the first compiles kernels, which takes a minute."""

    live: ClassVar[bool] = False
    """Whether there is one arm alone, in real time."""

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> BatchVecEnv:
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, there is no interpreter with Newton, or Newton
                cannot play the task.
        """
        check_least(self, contacts=1, constraints=1)
        settings = self
        if not self.python:
            settings = dataclasses.replace(self, python=str(environments.interpreter("newton")))
        return hosted.build(
            task, robot, num_envs, "newton", settings,
            {"device": self.device, "draws": self.pictures == "engine", "nconmax": self.contacts,
             "njmax": self.constraints},
        )  # fmt: skip
