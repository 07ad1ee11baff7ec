"""One simulated environment: physics, episode rules and randomness; no images (see sim.render)."""

import copy
from typing import Any

import mujoco
import numpy as np

from sim import randomize
from sim.scene import Scene


class MujocoWorld:
    """Satisfies `sim.task.World`: one arm, one task, one episode at a time.

    Everything random in an episode follows from (seed, index), and layout does not depend on
    whether looks and physics are varied.
    """

    def __init__(self, scene: Scene, *, vary: bool = True, looks: str = "usual") -> None:
        """Make an environment with its own copy of the scene's model.

        Args:
            scene: Compiled scene; only read.
            vary: Whether episodes differ in colour, light, camera pose, friction and mass.
            looks: What of it lies outside the usual range: one of `sim.randomize.LOOKS`.
        """
        randomize.check_looks(looks)
        self.scene = scene
        self.task = scene.task
        self.robot = scene.robot
        self.vary = vary
        self.looks = looks
        self.model = copy.copy(scene.model)
        self.data = mujoco.MjData(self.model)
        self.rng = np.random.default_rng(0)
        self.steps = 0
        self.time_limit = self.task.max_episode_steps
        self.episode: Any = None
        self.instruction = ""
        self.index = -1
        self.succeeded = False
        joints = [self.model.joint(name) for name in self.robot.names]
        self.joint_qpos = np.array([j.qposadr[0] for j in joints])
        self.joint_qvel = np.array([j.dofadr[0] for j in joints])
        self.actuators = np.array([self.model.actuator(name).id for name in self.robot.names])
        self.tool_site = self.model.site("tool").id
        self._low = np.array(self.robot.low)
        self._high = np.array(self.robot.high)
        self._home = np.array(self.robot.home)
        self._coupled = _coupled_joints(self.model)

    def reset(self, seed: int, index: int) -> None:
        """Begin episode `index` of `seed`: arm at home, at rest, a new layout and instruction."""
        looks, layout = np.random.SeedSequence([seed, index]).spawn(2)
        if self.vary:
            nominal = self.scene.model
            variation = randomize.draw(np.random.default_rng(looks), nominal, self.looks)
            randomize.apply_(self.model, nominal, variation)
        else:
            self.model.geom_rgba[:] = self.scene.model.geom_rgba
        self.rng = np.random.default_rng(layout)
        self.index = index
        self.steps = 0
        self.succeeded = False
        self.time_limit = self.task.max_episode_steps
        self.go_home_()
        self.task.reset(self)
        mujoco.mj_forward(self.model, self.data)

    def go_on(self, seed: int, index: int) -> None:
        """Begin episode `index` of `seed` in the world as it is: a new goal and instruction, and
        arm, colours and light stay.

        Raises:
            ValueError: something lies about whose place would change.
        """
        if not self.goes_on:
            raise ValueError(
                "things lie about in this task, and its episodes begin with them in place: reset "
                "the world instead"
            )
        self.rng = np.random.default_rng(np.random.SeedSequence([seed, index]).spawn(2)[1])
        self.index = index
        self.steps = 0
        self.succeeded = False
        self.time_limit = self.task.max_episode_steps
        self.task.reset(self)
        mujoco.mj_kinematics(self.model, self.data)

    @property
    def goes_on(self) -> bool:
        """Whether nothing can move but the arm, so that a goal is all that an episode draws."""
        return self.model.nq == len(self.joint_qpos) + len(self._coupled)

    def go_home_(self) -> None:
        """Set the whole physics state to its default with the arm at home, at rest, held there."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.joint_qpos] = self._home
        for follower, leader, polynomial in self._coupled:
            powers = (self.data.qpos[leader] - self.model.qpos0[leader]) ** np.arange(5)
            self.data.qpos[follower] = self.model.qpos0[follower] + polynomial @ powers
        self.data.ctrl[self.actuators] = self._home

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Apply one action (position targets, shape (u,)) for one control step.

        Returns:
            reward, terminated, truncated: reward is 1 in the step that reaches success, else 0.
        """
        self.drive_(action, self.scene.substeps)
        return self.count_()

    def drive_(self, target: np.ndarray, substeps: int) -> None:
        """Hold position targets, shape (u,), for some steps of physics: a part of a control step.

        The parts of a control step, whatever their number, end where the whole of it does.
        """
        target = self.task.control(self, np.asarray(target, np.float64))
        self.data.ctrl[self.actuators] = np.minimum(np.maximum(target, self._low), self._high)
        mujoco.mj_step(self.model, self.data, nstep=substeps)
        # mj_step leaves poses one substep behind the joint positions.
        mujoco.mj_kinematics(self.model, self.data)

    def count_(self) -> tuple[float, bool, bool]:
        """End a control step that `drive_` has driven: count it, and apply the task's rules.

        Returns:
            What `step` does.
        """
        self.steps += 1
        self.task.advance(self)
        self.succeeded = self.task.success(self)
        terminated = self.succeeded or self.task.failure(self)
        truncated = not terminated and self.steps >= self.time_limit
        return float(self.succeeded), terminated, truncated

    @property
    def proprio(self) -> np.ndarray:
        """Measured channel positions, float32, shape (u,)."""
        return self.data.qpos[self.joint_qpos].astype(np.float32)

    @property
    def time_s(self) -> float:
        """Seconds since the episode began, at control steps."""
        return self.steps / self.robot.control_hz


def _coupled_joints(model: mujoco.MjModel) -> list[tuple[int, int, np.ndarray]]:
    """Return (qpos index of follower, of leader, polynomial) of each joint equality of a model."""
    pairs = np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT))
    return [
        (
            int(model.jnt_qposadr[model.eq_obj1id[i]]),
            int(model.jnt_qposadr[model.eq_obj2id[i]]),
            model.eq_data[i, :5].copy(),
        )
        for i in pairs
        if model.eq_obj2id[i] >= 0
    ]
