"""One simulated environment: physics, episode rules and randomness; no images (see
sim.core.render).
"""

import copy
import dataclasses
from typing import Any

import mujoco
import numpy as np

from sim.core import randomize
from sim.core.projection import project
from sim.core.scene import Scene
from sim.core.task import ChangesInstruction, HasReferents
from sim.core.worlds import FIELDS, Fields, Worlds, row_of, stacked


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SavedWorld:
    """State of an episode; see the fields of `MujocoWorld` with the same names."""

    index: int
    data: mujoco.MjData
    geom_rgba: np.ndarray
    steps: int
    episode: Any
    rng: Any
    """State of the generator of the episode."""
    time_limit: int
    instruction: str
    succeeded: bool


class MujocoWorld:
    """Satisfies `sim.core.task.World`: one arm, one task, one episode at a time.

    Everything random in an episode follows from (seed, index), and layout does not depend on
    whether appearance and physics are varied.
    """

    def __init__(self, scene: Scene, *, vary: bool = True, visual_shift: str = "none") -> None:
        """Make an environment with its own copy of the scene's model.

        Args:
            scene: Compiled scene; only read.
            vary: Whether episodes differ in colour, light, camera pose, friction and mass.
            visual_shift: One of `sim.core.randomize.VISUAL_SHIFTS`.
        """
        randomize.check_visual_shift(visual_shift)
        self.scene = scene
        self.task = scene.task
        self.robot = scene.robot
        self.vary = vary
        self.visual_shift = visual_shift
        self.model = copy.copy(scene.model)
        self.data = mujoco.MjData(self.model)
        self.rng = np.random.default_rng(0)
        self.time_limit = self.task.max_episode_steps
        self.tool_error_m = np.zeros(3)
        self.index = -1
        self.succeeded = False
        self.as_batch = Worlds(
            self.model, self.robot, _fields(self.model, self.data), _OneWorld(self)
        )
        self.joint_qpos = self.as_batch.joint_qpos
        self.joint_qvel = self.as_batch.joint_qvel
        self.actuators = self.as_batch.actuators
        self.tool_site = self.model.site("tool").id
        self._low = np.array(self.robot.low)
        self._high = np.array(self.robot.high)
        self._home = np.array(self.robot.home)
        self._coupled = coupled_joints(self.model)
        self._instruction = ""
        self._changes_instruction = isinstance(self.task, ChangesInstruction)

    def reset(self, seed: int, index: int) -> None:
        """Begin episode `index` of `seed`: arm at home, at rest, a new layout and instruction."""
        appearance, layout = np.random.SeedSequence([seed, index]).spawn(2)
        if self.vary:
            nominal = self.scene.model
            variation = randomize.draw(
                np.random.default_rng(appearance), nominal, self.visual_shift
            )
            randomize.apply(self.model, nominal, variation, self.data)
        else:
            self.model.geom_rgba[:] = self.scene.model.geom_rgba
        self.go_home()
        self._begin(layout, index)
        mujoco.mj_forward(self.model, self.data)

    def referents(self) -> np.ndarray | None:
        """Return where the things that the instruction names are in the images now, float32, shape
        (views, kinds, 2) as in `vla.contracts.referents`; None for a task that names no places.
        """
        if not isinstance(self.task, HasReferents):
            return None
        mujoco.mj_camlight(self.model, self.data)  # a step of physics leaves the cameras behind
        points = self.task.referents(self.as_batch)[0]
        views = [project(self.model, self.data, c.name, points) for c in self.robot.cameras]
        return np.stack(views).astype(np.float32)

    def save(self) -> "SavedWorld":
        """Return a copy of the state of the present episode, for `restore`."""
        return SavedWorld(
            index=self.index, data=copy.copy(self.data), geom_rgba=self.model.geom_rgba.copy(),
            steps=self.steps, episode=copy.deepcopy(self.as_batch.episode),
            rng=self.rng.bit_generator.state, time_limit=self.time_limit,
            instruction=self.instruction, succeeded=self.succeeded,
        )  # fmt: skip

    def restore(self, saved: "SavedWorld", seed: int) -> None:
        """Continue a saved episode of a seed, of this world or of another one of the same scene."""
        self.reset(seed, saved.index)  # what varies from episode to episode is in the model
        mujoco.mj_copyData(self.data, self.model, saved.data)
        self.model.geom_rgba[:] = saved.geom_rgba
        self.as_batch.steps[:] = saved.steps
        self.as_batch.episode = copy.deepcopy(saved.episode)
        self.rng.bit_generator.state = saved.rng
        self.time_limit, self.instruction = saved.time_limit, saved.instruction
        self.succeeded = saved.succeeded

    def begin_in_place(self, seed: int, index: int) -> None:
        """Begin episode `index` of `seed` in place: goal and instruction change, arm, colours and
        light stay.

        Raises:
            ValueError: an object's place would change.
        """
        if not self.can_begin_in_place:
            raise ValueError(
                "the objects of this task have to be put in place at an episode's begin: reset the "
                "world instead"
            )
        self._begin(np.random.SeedSequence([seed, index]).spawn(2)[1], index)
        mujoco.mj_kinematics(self.model, self.data)

    def _begin(self, layout: np.random.SeedSequence, index: int) -> None:
        self.rng = np.random.default_rng(layout)
        self.index = index
        self.as_batch.steps[:] = 0
        self.succeeded = False
        self.time_limit = self.task.max_episode_steps
        self.task.reset(self)

    @property
    def can_begin_in_place(self) -> bool:
        """Whether only the arm can move, so that an episode draws a goal alone."""
        return self.model.nq == len(self.joint_qpos) + len(self._coupled)

    def go_home(self) -> None:
        """Set the whole physics state to its default with the arm at home, at rest, held there."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.joint_qpos] = self._home
        for *joints, polynomial in self._coupled:
            follower, leader = self.model.jnt_qposadr[joints]
            powers = (self.data.qpos[leader] - self.model.qpos0[leader]) ** np.arange(5)
            self.data.qpos[follower] = self.model.qpos0[follower] + polynomial @ powers
        self.data.ctrl[self.actuators] = self._home

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Apply one action (position targets, shape (u,)) for one control step.

        Returns:
            reward, terminated, truncated: reward is 1 in the step that reaches success, else 0.
        """
        self.drive(action, self.scene.substeps)
        return self.end_step()

    def drive(self, target: np.ndarray, substeps: int) -> None:
        """Hold position targets, shape (u,), for some steps of physics: a part of a control step.

        The result does not depend on the number of parts.
        """
        target = self.task.control(self.as_batch, np.asarray(target, np.float64)[None])[0]
        self.data.ctrl[self.actuators] = np.minimum(np.maximum(target, self._low), self._high)
        mujoco.mj_step(self.model, self.data, nstep=substeps)
        # mj_step leaves poses one substep behind the joint positions.
        mujoco.mj_kinematics(self.model, self.data)

    def end_step(self) -> tuple[float, bool, bool]:
        """End a control step of `drive`: count it and apply the task's rules; returns as `step`."""
        self.as_batch.steps += 1
        self.task.advance(self.as_batch)
        self.succeeded = bool(self.task.success(self.as_batch)[0])
        terminated = self.succeeded or bool(self.task.failure(self.as_batch)[0])
        truncated = not terminated and self.steps >= self.time_limit
        return float(self.succeeded), terminated, truncated

    @property
    def steps(self) -> int:
        """Control steps since the episode began."""
        return int(self.as_batch.steps[0])

    @property
    def episode(self) -> Any:
        """The task's state of the episode: a copy of the row in `as_batch.episode`."""
        return None if self.as_batch.episode is None else row_of(self.as_batch.episode, 0)

    @episode.setter
    def episode(self, state: Any) -> None:
        self.as_batch.episode = stacked(state, 1)

    @property
    def instruction(self) -> str:
        """What the policy is told now: one of the task's instructions."""
        if not self._changes_instruction or self.as_batch.episode is None:
            return self._instruction
        task: Any = self.task
        return str(task.instructions[int(task.instruction_index(self.as_batch)[0])])

    @instruction.setter
    def instruction(self, text: str) -> None:
        self._instruction = text

    def progress(self) -> float:
        """Return oracle progress in [0, 1]."""
        return float(self.task.progress(self.as_batch)[0])

    @property
    def proprio(self) -> np.ndarray:
        """Measured channel positions, float32, shape (u,)."""
        return self.data.qpos[self.joint_qpos].astype(np.float32)

    @property
    def time_s(self) -> float:
        """Seconds since the episode began, at control steps."""
        return self.steps / self.robot.control_hz


class _OneWorld:
    """Satisfies `sim.core.worlds.Simulation` for one world."""

    def __init__(self, world: MujocoWorld) -> None:
        self._world = world
        self._reset = False

    def contacts(self) -> tuple[np.ndarray, np.ndarray]:
        pairs = self._world.data.contact.geom
        return np.zeros(len(pairs), np.int64), pairs

    def go_home(self, rows: np.ndarray) -> None:
        self._world.go_home()
        self._reset = True

    def refresh(self, rows: np.ndarray) -> None:
        if self._reset:
            mujoco.mj_forward(self._world.model, self._world.data)
        else:
            mujoco.mj_kinematics(self._world.model, self._world.data)
        self._reset = False


def _fields(model: mujoco.MjModel, data: mujoco.MjData) -> Fields:
    """Return the memory of a model and its data as that of n = 1 worlds."""
    owner = {"geom_rgba": model}
    return Fields(**{name: getattr(owner.get(name, data), name)[None] for name in FIELDS})


def coupled_joints(model: mujoco.MjModel) -> list[tuple[int, int, np.ndarray]]:
    """Return (id of follower, of leader, polynomial) of each joint equality of a model."""
    pairs = (model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)) & (model.eq_obj2id >= 0)
    return [
        (int(model.eq_obj1id[i]), int(model.eq_obj2id[i]), model.eq_data[i, :5].copy())
        for i in np.flatnonzero(pairs)
    ]
