"""The interface of a task and of the world it acts on; the tasks themselves are in `sim/tasks`.

A task plug-in is one file under `sim/tasks` that exports a frozen `Config(PluginConfig)` whose
`build(robot)` returns a `Task`. World frame: robot base at the origin, x forward, y left, z up,
table top at z = 0.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np

from vla.contracts.specs import RobotSpec


@runtime_checkable
class World(Protocol):
    """One simulated environment during one episode (implemented by `sim.world.MujocoWorld`)."""

    robot: RobotSpec
    model: mujoco.MjModel
    """This environment's own copy: per-episode randomisation writes to it."""
    data: mujoco.MjData
    rng: np.random.Generator
    """The only source of randomness of the episode."""
    steps: int
    """Control steps since the episode began."""
    time_limit: int
    """Control steps after which this episode is truncated: `Task.max_episode_steps` at
    `Task.reset`, which may lower it."""
    episode: Any
    """The task's own state of the episode, set by `Task.reset`."""
    instruction: str
    """Set by `Task.reset`: one of `Task.instructions`."""
    joint_qpos: np.ndarray
    """Index of each channel's joint in `data.qpos`."""
    joint_qvel: np.ndarray
    """Index of each channel's joint in `data.qvel`."""
    actuators: np.ndarray
    """Index of each channel's actuator in `data.ctrl`."""
    tool_site: int
    """Id of the robot's site "tool"."""

    def go_home_(self) -> None:
        """Set the whole physics state to its default with the arm at home, at rest, held there."""
        ...


@runtime_checkable
class Task(Protocol):
    """What there is to do: scene, layout, rules, success, and how an expert does it."""

    robot: RobotSpec
    instructions: tuple[str, ...]
    """Every instruction an episode may carry, in several wordings."""
    max_episode_steps: int

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the task's bodies to a scene that already holds table, lights, arm and cameras."""
        ...

    def reset(self, world: World) -> None:
        """Draw a layout with `world.rng`, write it to `world.data`, set episode and instruction."""
        ...

    def control(self, world: World, action: np.ndarray) -> np.ndarray:
        """Return the position targets to apply; a task that locks the arm returns the home pose."""
        ...

    def advance(self, world: World) -> None:
        """Move the task's own state machine on, once after the physics of each control step."""
        ...

    def success(self, world: World) -> bool:
        """True once the task is solved; ends the episode."""
        ...

    def failure(self, world: World) -> bool:
        """True after an irrevocable mistake; ends the episode."""
        ...

    def progress(self, world: World) -> float:
        """Staged oracle progress in [0, 1]; 1 exactly with success. Never shown to a policy."""
        ...

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Yield one action (position targets) per control step, reading `world` as it goes.

        `variant` is "expert" or one of the bad behaviours that `sim.behaviours` asks tasks for.
        """
        ...
