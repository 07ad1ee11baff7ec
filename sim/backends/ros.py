"""The simulated arm behind ROS 2 topics and its safety node, in real time: one environment.

`robot_bridge.arm_env` drives it; `sim` may not import that package, so it is imported by name.
"""

import dataclasses
import importlib
from typing import Any, ClassVar, Literal

from sim.core import step_buffers
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.vec_env import load_robot
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec

DRIVER = "robot_bridge.arm_env"
LATCHES = ("command_timeout", "policy_died", "joint_state_timeout", "tracking_error", "clock")
"""Stages at which the safety node stops the arm by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the arm is run."""

    workers: int = 1
    """Always 1."""
    randomize: bool = True
    """Always True: episodes of the simulated arm differ."""
    reset: Literal["world", "arm"] = "world"
    """How an episode begins: "world" puts arm and objects at their start; with "arm", the arm
    retraces its path and goes home, and the objects stay where they are."""
    command_timeout_s: float = 1.0
    """Seconds without a command after which the safety node stops the arm; more than a decision."""
    joint_state_timeout_s: float = 1.0
    """Seconds without joint states after which it stops the arm."""
    auto_resume_stages: tuple[str, ...] = ("command_timeout", "policy_died", "joint_state_timeout")
    """Stages of the safety node after whose stop rollouts resume with the next episode: by default
    those of late messages. Add "tracking_error" where the arm may run against something, and
    "clock"; an e-stop always needs a person."""
    log: str = ""
    """File for the output of the nodes; empty keeps none."""

    is_realtime: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, most in (("command_timeout_s", 10.0), ("joint_state_timeout_s", 10.0)):
            if not 0.02 <= getattr(self, name) <= most:  # NaN is not
                got = getattr(self, name)
                raise ValueError(f"backend.{name}: got {got}, expected 0.02 to {most:g}")
        if wrong := set(self.auto_resume_stages) - set(LATCHES):
            raise ValueError(
                f"backend.auto_resume_stages: got {', '.join(sorted(wrong))}, expected some of "
                f"{', '.join(LATCHES)}"
            )
        if self.workers != 1 or not self.randomize:
            raise ValueError(
                f"backend ros: got {self.workers} workers and randomize {self.randomize}, expected "
                "1 and True: there is one arm, and its episodes differ"
            )

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> Any:
        """Return the arm as an environment.

        Raises:
            ValueError: more than one arm is asked for, one that `vla/robots` does not have, a task
                that cannot begin in the world as it is, or a node does not start.
        """
        if num_envs != 1:
            raise ValueError(f"num_envs: got {num_envs}, expected 1: there is one arm")
        if load_robot(robot.name) != robot:
            raise ValueError(
                f"robot {robot.name!r}: differs from vla/robots/{robot.name}.py, which the nodes "
                "read; use that one"
            )
        scene = compile_scene(task, robot)
        if self.reset == "arm" and not MujocoWorld(scene).can_begin_in_place:
            raise ValueError(
                f"backend.reset: got 'arm' for {configs.type_name(task)}, whose objects "
                "the arm does not put back by itself; use --backend.reset world, or a task in "
                "which nothing but the arm moves, such as reach"
            )
        spec = step_buffers.env_spec(scene, configs.type_name(task))
        return importlib.import_module(DRIVER).ArmEnv(spec, configs.to_json(task), self)
