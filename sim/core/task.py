"""The interface of a task and of the worlds it acts on; the tasks themselves are in `sim/tasks`.

A task plug-in is one file under `sim/tasks` that exports a frozen `Config(PluginConfig)` whose
`build(robot)` returns a `Task`. World frame: robot base at the origin, x forward, y left, z up,
table top at z = 0.
"""

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import mujoco
import numpy as np
from jaxtyping import Bool, Float64, Int64

from sim.core.worlds import Rows, Worlds
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

__all__ = [
    "ChangesInstruction", "HasGoals", "HasLock", "HasReferents", "Rows", "Task", "Unlocked",
    "World", "Worlds", "ending",
]  # fmt: skip

C = TypeVar("C", bound=PluginConfig)


@runtime_checkable
class World(Protocol):
    """One simulated environment during one episode (implemented by
    `sim.core.world.MujocoWorld`).
    """

    robot: RobotSpec
    model: mujoco.MjModel
    """This environment's own copy: per-episode randomization writes to it."""
    data: mujoco.MjData
    rng: np.random.Generator
    """The only source of randomness of the episode."""
    time_limit: int
    """Control steps after which this episode is truncated: `Task.max_episode_steps` at
    `Task.reset`, which may lower it."""
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
    tool_error_m: np.ndarray
    """How far off an expert's idea of the tool's position is, metres, shape (3,): zero, unless it
    is to make mistakes."""

    @property
    def as_batch(self) -> Worlds:
        """This world as rules see it: a batch of n = 1."""

    @property
    def steps(self) -> int:
        """Control steps since the episode began."""

    @property
    def episode(self) -> Any:
        """The task's state of the episode, set by `Task.reset`: a copy of that in `as_batch`."""

    @episode.setter
    def episode(self, state: Any) -> None: ...

    def progress(self) -> float:
        """Return `Task.progress` of this world."""

    def go_home(self) -> None:
        """Set the whole physics state to its default with the arm at home, at rest, held there."""


class Unlocked(Generic[C]):
    """Rules of a task that applies actions as they are and has no irrevocable mistakes."""

    def __init__(self, config: C, robot: RobotSpec) -> None:
        self.config = config
        self.robot = robot

    def control(self, worlds: Worlds, action: Float64[Array, "n u"]) -> Float64[Array, "n u"]:
        """Apply the action as it is."""
        return action

    def advance(self, worlds: Worlds) -> None:
        """Nothing changes but by physics."""

    def failure(self, worlds: Worlds) -> Bool[Array, " n"]:
        """Nothing is irrevocable."""
        return np.zeros(len(worlds.steps), np.bool_)


@runtime_checkable
class Task(Protocol):
    """What there is to do: scene, layout, rules, success, and how an expert does it.

    Rules are array code over n worlds, so that thousands cost hardly more than one. `reset` and
    `script` handle one world: each episode has its own generator, each expert its own state.
    """

    robot: RobotSpec
    instructions: tuple[str, ...]
    """Every instruction of an episode, in several wordings."""
    max_episode_steps: int
    variants: tuple[str, ...]
    """Failures of `sim.experts.behaviours.SCRIPTED` that `script` plays besides "expert", for
    reward models; may be empty."""

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the task's bodies to a scene that already holds table, lights, arm and cameras."""

    def reset(self, world: World) -> None:
        """Draw a layout with `world.rng`, write it to `world.data`, set episode and instruction.

        Of the model it may write only `sim.engines.engine.VARIED`.
        """

    def control(self, worlds: Worlds, action: Float64[Array, "n u"]) -> Float64[Array, "n u"]:
        """Return the position targets to apply; a task that locks the arm returns the home pose."""

    def advance(self, worlds: Worlds) -> None:
        """Advance the task's state machine, once after the physics of each control step."""

    def success(self, worlds: Worlds) -> Bool[Array, " n"]:
        """True once the task is solved; ends the episode."""

    def failure(self, worlds: Worlds) -> Bool[Array, " n"]:
        """True after an irrevocable mistake; ends the episode."""

    def progress(self, worlds: Worlds) -> Float64[Array, " n"]:
        """Staged oracle progress in [0, 1]; 1 exactly with success. Never shown to a policy."""

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Yield an action (position targets) per control step from the present state of `world`.

        `variant` is "expert" or one of `variants`.
        """


@runtime_checkable
class HasGoals(Protocol):
    """A task with several goals in one scene; an episode's instruction names one of them."""

    goals: tuple[Any, ...]
    """The goals, in a fixed order."""

    def goal_index(self, worlds: Worlds) -> Int64[Array, " n"]:
        """Return the index in `goals` of the goal of each world's episode."""

    def achieved(self, worlds: Worlds) -> Int64[Array, " n"]:
        """Return the index in `goals` of what has been done in each world; -1 for none of them."""

    goal_state_names: tuple[str, ...]
    """Names of the G numbers that tell the goal of an episode, for value functions."""

    def goal_state(self, worlds: Worlds) -> Float64[Array, "n g"]:
        """Return these numbers of each world: metres, or shares."""


@runtime_checkable
class HasReferents(Protocol):
    """A task that says where the things are that an instruction names."""

    def referents(self, worlds: Worlds) -> Float64[Array, "n 2 3"]:
        """Return where the thing to act on is, and the place where it has to go, or the thing that
        names this place: one for each of `vla.contracts.referents.KINDS`, world frame, metres; NaN
        while there is none.
        """


@runtime_checkable
class ChangesInstruction(Protocol):
    """A task whose instruction changes within an episode."""

    def instruction_index(self, worlds: Worlds) -> Int64[Array, " n"]:
        """Return the index in `instructions` of what each world is told now."""


@runtime_checkable
class HasLock(Protocol):
    """A task that holds the arm for a while, whatever is commanded."""

    def is_locked(self, worlds: Worlds) -> Bool[Array, " n"]:
        """Return where the arm is held now."""


def ending(task: Task, worlds: Worlds) -> tuple[Int64[Array, " n"], Int64[Array, " n"]]:
    """Return the goal of each world's episode and what has been achieved, as indices; -1 for none.

    Both are -1 for a task with a single goal.
    """
    if isinstance(task, HasGoals):
        return task.goal_index(worlds), task.achieved(worlds)
    nothing = np.full(len(worlds.steps), -1)
    return nothing, nothing
