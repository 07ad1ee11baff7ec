"""The simulated arm behind ROS 2 topics and its safety node, in real time: one environment.

What drives it is the robot's side, which nothing down here imports: it is found by name, as `vla`
finds what its verbs do.
"""

import dataclasses
import importlib
from typing import Any, ClassVar, Literal

from sim.scene import compile_scene
from sim.vec_env import load_robot
from sim.world import MujocoWorld
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.specs import EnvSpec, RobotSpec

DRIVER = "robot_bridge.arm_env"
LATCHES = ("silence", "gone", "blind", "stuck", "clock")
"""Stages of a safety node that stop an arm without a person."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the arm is run."""

    workers: int = 1
    """Always 1."""
    randomize: bool = True
    """Always: episodes of the simulated arm differ."""
    reset: Literal["world", "arm"] = "world"
    """What an episode begins with: "world", somebody puts arm and things where they belong; "arm",
    the arm goes back the way it came and home, and the world stays as it is."""
    silent_s: float = 1.0
    """Silence of who acts after which the safety node stops the arm: a decision takes less."""
    blind_s: float = 1.0
    """Silence of the joint states after which it does."""
    goes_on: tuple[str, ...] = ("silence", "gone", "blind")
    """Stages of the safety node after whose stop practice goes on by itself, with the next episode:
    those where messages were late. "stuck" may be added where an arm may run against something, and
    "clock"; after an e-stop somebody has to see to the arm, always."""
    log: str = ""
    """File for what the nodes say; nothing is kept if empty."""

    live: ClassVar[bool] = True
    """Whether there is one arm alone, in real time."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        for name, most in (("silent_s", 10.0), ("blind_s", 10.0)):
            if not 0.02 <= getattr(self, name) <= most:  # NaN is not
                got = getattr(self, name)
                raise ValueError(f"backend.{name}: got {got}, expected 0.02 to {most:g}")
        if wrong := set(self.goes_on) - set(LATCHES):
            raise ValueError(
                f"backend.goes_on: got {', '.join(sorted(wrong))}, expected some of "
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
                that cannot go on in the world as it is, or a node does not start.
        """
        if num_envs != 1:
            raise ValueError(f"num_envs: got {num_envs}, expected 1: there is one arm")
        if load_robot(robot.name) != robot:
            raise ValueError(
                f"robot {robot.name!r}: differs from vla/robots/{robot.name}.py, which the nodes "
                "read; practise with that one"
            )
        scene = compile_scene(task, robot)
        if self.reset == "arm" and not MujocoWorld(scene).goes_on:
            raise ValueError(
                f"backend.reset: got 'arm' for {configs.type_name(task)}, where things lie about "
                "that an arm does not put back by itself; use --backend.reset world, or a task in "
                "which nothing but the arm moves, such as reach"
            )
        spec = EnvSpec(
            task=configs.type_name(task), robot=robot, instructions=scene.task.instructions,
            max_episode_steps=scene.task.max_episode_steps,
        )  # fmt: skip
        return importlib.import_module(DRIVER).ArmEnv(spec, configs.to_json(task), self)
