"""Turns any physics engine into a `VecEnv`: episodes, rules and experts over all its worlds.

Layouts are drawn on the host, on one world of MuJoCo's own, so that episode (seed, index) begins
alike on every backend; rules run once per control step, on arrays over all worlds.
"""

import time
import warnings

import numpy as np

from sim import report
from sim.engines.engine import Engine
from sim.engines.stage import Stage
from sim.engines.twin import Twin
from sim.scene import compile_scene
from sim.world import MujocoWorld
from sim.worlds import arrays_of, stacked
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array, EnvStep, Observation


class BatchVecEnv:
    """Satisfies `vla.contracts.protocols.VecEnv`.

    A world of which its engine says that it went wrong is reset within the same step: its episode
    ends truncated, without success, with the last observation that was sound as its final one.
    `info["fault"]`, bool [e], says where that happened. Pictures are the engine's own arrays:
    tensors on its device, if it makes such.
    """

    def __init__(
        self,
        task: PluginConfig,
        robot: RobotSpec,
        num_envs: int,
        engine: Engine,
        *,
        randomize: bool = True,
    ) -> None:
        """Take over an engine that holds E worlds of the scene of a task and a robot.

        Args:
            task: The task's configuration.
            robot: The arm.
            num_envs: Number E of environments.
            engine: Closed with these environments.
            randomize: Whether episodes differ in colour, light, camera pose, friction and mass, as
                far as the engine can.

        Raises:
            ValueError: there is no environment, or the engine has another number of worlds.
        """
        report.check_num_envs(num_envs)
        if engine.num_worlds != num_envs:
            raise ValueError(f"engine: got {engine.num_worlds} worlds, expected {num_envs}")
        scene = compile_scene(task, robot)
        self.num_envs = num_envs
        self.spec = report.env_spec(scene, type_name(task))
        self.render_s = 0.0
        """Seconds spent on pictures so far."""
        self._scene = scene
        self._vary = randomize
        self._scratch = MujocoWorld(scene, vary=randomize)
        self._stage = Stage(scene, engine)
        self._worlds = self._stage.worlds
        self._instructions = np.array(scene.task.instructions, dtype=object)
        self._instruction_ids = {text: i for i, text in enumerate(scene.task.instructions)}
        fields = report.layout(scene, num_envs)
        self._buffers = report.allocate({k: v for k, v in fields.items() if "images" not in k})
        self._images: Array = None
        self._started = np.zeros(num_envs, np.bool_)
        self._seed = np.zeros(num_envs, np.int64)
        self._index = np.zeros(num_envs, np.int64)
        self._time_limit = np.zeros(num_envs, np.int64)
        self._success = np.zeros(num_envs, np.bool_)
        self._fault = np.zeros(num_envs, np.bool_)
        self._twins: dict[int, Twin] = {}
        self._warned = False

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0)."""
        report.check_seed(seed)
        rows = np.arange(self.num_envs)
        return self.begin(rows, np.full(self.num_envs, seed), rows)

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows at once; what they were at is dropped.

        Args:
            rows: i64 [n], each once.
            seed: i64 [n], seed of each one's episode, 0 or more.
            index: i64 [n], its index among those of the seed, 0 or more.

        Returns:
            What is seen in all rows now.

        Raises:
            ValueError: a number is out of range.
        """
        rows, seed, index = report.checked_start(self.num_envs, rows, seed, index)
        self._begin_(rows, seed, index)
        self._started[rows] = True
        self._see_(rows)
        return report.observation(self._buffers, self._images, self._instructions)

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets, float32, shape (e, u)) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self, actions: np.ndarray, helped: np.ndarray | None = None, idle: np.ndarray | None = None
    ) -> EnvStep:
        """Apply up to h actions one after the other and observe after the last.

        An environment whose episode ends stops there, is reset, and idles for the rest.

        Args:
            actions: Position targets in physical units, float32, shape (e, h, u), 1 <= h <= 256.
            helped: Rows in which the task's scripted expert acts instead, bool, shape (e,).
            idle: Rows that stand still and cost nothing, bool, shape (e,); whatever their actions.

        Returns:
            The step; `reward` is the sum, `info["steps"]` the number of actions executed,
            `info["actions"]` which ones, float32, shape (e, h, u), and `info["fault"]` where a
            world went wrong.

        Raises:
            ValueError: a shape is wrong or a value is not finite.
        """
        actions = report.checked_actions(
            actions, helped, idle, started=self._started, channels=len(self.spec.robot.channels)
        )
        buffers, length = self._buffers, actions.shape[1]
        moved = np.ones(self.num_envs, np.bool_) if idle is None else ~np.asarray(idle, np.bool_)
        asked = np.zeros_like(moved) if helped is None else np.asarray(helped, np.bool_)
        for name in ("reward", "steps", "terminated", "truncated"):
            buffers[name][:] = 0
        self._fault[:] = False
        buffers["actions"][moved, :length] = actions[moved]
        active = moved.copy()
        for k in range(length):
            if not active.any():
                break
            wanted = actions[:, k].copy()
            for row in np.flatnonzero(active & asked):
                wanted[row] = self._ask(int(row))
            buffers["actions"][active, k] = wanted[active]
            self._control_step_(wanted, active)
            active &= ~(buffers["terminated"] | buffers["truncated"])
        ended = buffers["terminated"] | buffers["truncated"]
        for row, twin in self._twins.items():
            if moved[row] and not asked[row]:
                twin.rest_()
        if moved.any():
            self._judge(moved)
        final_images = self._renew_(np.flatnonzero(ended), np.flatnonzero(moved))
        step = report.env_step(buffers, self._images, final_images, self._instructions, length)
        step.info["fault"] = self._fault.copy()
        return step

    def close(self) -> None:
        """Close the engine; the environments cannot be used afterwards."""
        self._started[:] = False
        self._stage.engine.close()

    def _control_step_(self, wanted: np.ndarray, active: np.ndarray) -> None:
        """Apply actions f32 [e, u] in the worlds that are active, bool [e], and the task's rules.

        What `MujocoWorld.step` does, for all of them.
        """
        task, worlds, robot = self._scene.task, self._worlds, self.spec.robot
        target = task.control(worlds, wanted.astype(np.float64))
        target = np.minimum(np.maximum(target, robot.low), robot.high)
        rows = np.flatnonzero(active)
        self._stage.fields.ctrl[rows[:, None], worlds.actuators] = target[rows]
        fault = self._stage.step_(self._scene.substeps, active)
        worlds.steps[active] += 1
        worlds.moving[:] = active & ~fault
        self._advance_()
        success = task.success(worlds) & worlds.moving
        terminated = success | (task.failure(worlds) & worlds.moving)
        late = active & ~terminated & (worlds.steps >= self._time_limit)
        worlds.moving[:] = True
        self._success[active] = success[active]
        self._note_faults_(fault)
        buffers = self._buffers
        buffers["reward"] += success
        buffers["steps"] += active
        buffers["terminated"] |= terminated
        buffers["truncated"] |= late | fault

    def _advance_(self) -> None:
        """Move the tasks' state machines on in the worlds that move, and in no others."""
        worlds = self._worlds
        still = np.flatnonzero(~worlds.moving)
        kept = [values[still] for values in arrays_of(worlds.episode)] if len(still) else []
        self._scene.task.advance(worlds)
        for values, before in zip(arrays_of(worlds.episode), kept, strict=False):
            values[still] = before

    def _note_faults_(self, fault: np.ndarray) -> None:
        self._fault |= fault
        if fault.any() and not self._warned:
            self._warned = True
            warnings.warn(
                f"simulation: {int(fault.sum())} of {self.num_envs} worlds went wrong (NaN, or no "
                "room for contacts); such episodes are cut short and info['fault'] marks them",
                RuntimeWarning,
                stacklevel=4,
            )

    def _judge(self, moved: np.ndarray) -> None:
        """Report how the worlds stand that moved, bool [e], before any reset."""
        buffers = self._buffers
        progress = self._scene.task.progress(self._worlds)
        buffers["success"][moved] = self._success[moved]
        buffers["progress"][moved] = np.where(self._fault, 0.0, progress)[moved]
        buffers["episode"][moved] = self._index[moved]

    def _renew_(self, ended: np.ndarray, moved: np.ndarray) -> Array:
        """Reset rows whose episode ended, i64, and see the rows that moved, i64.

        Returns:
            Pictures of all rows before the reset.
        """
        if not len(ended):
            self._see_(moved)
            return self._images
        before, sound = self._images, ended[~self._fault[ended]]
        last = self._shoot(sound) if len(sound) else None
        self._observe_("final_", ended)
        self._begin_(ended, self._seed[ended], self._index[ended] + self.num_envs)
        self._see_(moved)
        final_images = _copy(self._images)
        wrong = ended[self._fault[ended]]
        final_images[wrong] = before[wrong]
        if last is not None:
            final_images[sound] = last
        return final_images

    def _begin_(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> None:
        """Draw episodes and write their worlds, all at once."""
        drawn, world, worlds = [], self._scratch, self._worlds
        for row, seed_of_row, number in zip(
            rows.tolist(), seed.tolist(), index.tolist(), strict=True
        ):
            world.reset(seed_of_row, number)
            drawn.append(self._stage.draw(world))
            if worlds.episode is None:
                worlds.episode = stacked(world.episode, self.num_envs)
            of_all, of_one = arrays_of(worlds.episode), arrays_of(world.alone.episode)
            for values, value in zip(of_all, of_one, strict=True):
                values[row] = value[0]
            self._time_limit[row] = world.time_limit
            self._buffers["instruction"][row] = self._instruction_ids[world.instruction]
            if row in self._twins:
                self._twins[row].rest_()
        worlds.steps[rows] = 0
        self._seed[rows], self._index[rows] = seed, index
        self._success[rows] = False
        if len(rows):
            self._stage.put_(rows, drawn)

    def _see_(self, rows: np.ndarray) -> None:
        """Observe some rows, i64; what is seen in the others stays."""
        self._observe_("", rows)
        if self._images is None or len(rows) == self.num_envs:
            self._images = self._shoot(np.arange(self.num_envs))
        elif len(rows):
            images = _copy(self._images)
            images[rows] = self._shoot(rows)
            self._images = images

    def _observe_(self, prefix: str, rows: np.ndarray) -> None:
        """Report all of an observation but the pictures."""
        buffers, worlds = self._buffers, self._worlds
        if prefix:
            buffers[prefix + "instruction"][rows] = buffers["instruction"][rows]
        qpos = self._stage.fields.qpos[rows[:, None], worlds.joint_qpos]
        buffers[prefix + "proprio"][rows] = qpos
        buffers[prefix + "time_s"][rows] = worlds.steps[rows] / self.spec.robot.control_hz

    def _shoot(self, rows: np.ndarray) -> Array:
        begin = time.perf_counter()
        images = self._stage.engine.render(rows)
        self.render_s += time.perf_counter() - begin
        return images

    def _ask(self, row: int) -> np.ndarray:
        """Return what the task's expert does now in a row, f32 [u]."""
        twin = self._twins.get(row)
        if twin is None:
            twin = self._twins[row] = Twin(self._scene, vary=self._vary)
        return twin.act(self._worlds, row, int(self._seed[row]), int(self._index[row]))


def _copy(images: Array) -> Array:
    return images.copy() if isinstance(images, np.ndarray) else images.clone()
