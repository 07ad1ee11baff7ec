"""Turns any physics engine into a `VecEnv`: episodes, rules and experts over all its worlds.

A MuJoCo world on the host draws the layouts, so that episode (seed, index) begins alike on every
backend; rules run once per control step, on arrays over all worlds.
"""

import time
import warnings

import numpy as np

from sim.core import step_buffers
from sim.core.privileged_state import PrivilegedState
from sim.core.scene import compile_scene
from sim.core.task import ChangesInstruction, ending
from sim.core.world import MujocoWorld
from sim.core.worlds import arrays_of, stacked
from sim.engines.engine import Engine
from sim.engines.host_mirror import HostMirror
from sim.engines.host_state import HostState
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array, EnvStep, Observation


class BatchVecEnv:
    """Satisfies `VecEnv` and `HasPrivilegedState` of `vla.contracts.protocols`.

    A world that its engine reports as faulty is reset within the same step: its episode ends
    truncated, without success, with its last sound observation as final one; `info["fault"]`,
    bool [e], marks it. Images are the engine's arrays: tensors on its device, if it has any.
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

        It is closed with the environments. `randomize` says whether episodes differ in colour,
        light, camera pose, friction and mass, as far as the engine can.

        Raises:
            ValueError: there is no environment, or the engine has another number of worlds.
        """
        step_buffers.check_num_envs(num_envs)
        if engine.num_worlds != num_envs:
            raise ValueError(f"engine: got {engine.num_worlds} worlds, expected {num_envs}")
        scene = compile_scene(task, robot)
        self.num_envs = num_envs
        self.spec = step_buffers.env_spec(scene, type_name(task))
        self.render_time_s = 0.0
        """Seconds spent on rendering so far."""
        self._privileged = PrivilegedState(scene)
        self.privileged_state_names = self._privileged.names
        """What each number of `privileged_state` is."""
        self._scene = scene
        self._vary = randomize
        self._scratch = MujocoWorld(scene, vary=randomize)
        self._host = HostState(scene, engine)
        self._worlds = self._host.worlds
        self._instructions = np.array(scene.task.instructions, dtype=object)
        self._instruction_ids = {text: i for i, text in enumerate(scene.task.instructions)}
        fields = step_buffers.layout(scene, num_envs)
        self._buffers = step_buffers.allocate(
            {k: v for k, v in fields.items() if "images" not in k}
        )
        self._images: Array = None
        self._started = np.zeros(num_envs, np.bool_)
        self._seed = np.zeros(num_envs, np.int64)
        self._index = np.zeros(num_envs, np.int64)
        self._time_limit = np.zeros(num_envs, np.int64)
        self._success = np.zeros(num_envs, np.bool_)
        self._fault = np.zeros(num_envs, np.bool_)
        self._mirrors: dict[int, HostMirror] = {}
        self._warned = False

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0)."""
        return self.begin(*step_buffers.first_episodes(self.num_envs, seed))

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows; see `vla.contracts.protocols.VecEnv`."""
        rows, seed, index = step_buffers.checked_start(self.num_envs, rows, seed, index)
        self._begin(rows, seed, index)
        self._started[rows] = True
        self._observe_rows(rows)
        return step_buffers.observation(self._buffers, self._images, self._instructions)

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets, float32, shape (e, u)) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> EnvStep:
        """Apply up to h actions and observe at the end; see `vla.contracts.protocols.VecEnv`.

        `info["fault"]`, bool [e], says where a world went wrong.
        """
        actions = step_buffers.checked_actions(
            actions,
            use_expert,
            frozen,
            started=self._started,
            channels=len(self.spec.robot.channels),
        )
        buffers, length = self._buffers, actions.shape[1]
        moved = (
            np.ones(self.num_envs, np.bool_) if frozen is None else ~np.asarray(frozen, np.bool_)
        )
        asked = np.zeros_like(moved) if use_expert is None else np.asarray(use_expert, np.bool_)
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
                wanted[row] = self._expert_action(int(row))
            buffers["actions"][active, k] = wanted[active]
            self._control_step(wanted, active)
            active &= ~(buffers["terminated"] | buffers["truncated"])
        ended = buffers["terminated"] | buffers["truncated"]
        for row, mirror in self._mirrors.items():
            if moved[row] and not asked[row]:
                mirror.release()
        if moved.any():
            self._report(moved)
        final_images = self._reset_ended(np.flatnonzero(ended), np.flatnonzero(moved))
        step = step_buffers.env_step(
            buffers, self._images, final_images, self._instructions, length
        )
        step.info["fault"] = self._fault.copy()
        return step

    def privileged_state(self) -> np.ndarray:
        """Return f32 [e, p]; see `vla.contracts.protocols.HasPrivilegedState`.

        Engines that tell no contacts have them computed here, world by world.
        """
        step_buffers.check_started(self._started)
        self._host.read_contacts()
        return self._privileged.read(self._worlds)

    def close(self) -> None:
        """Close the engine; the environments cannot be used afterwards."""
        self._started[:] = False
        self._host.engine.close()

    def _control_step(self, wanted: np.ndarray, active: np.ndarray) -> None:
        """Apply actions f32 [e, u] and the task's rules in active worlds, bool [e].

        It is `MujocoWorld.step` for all of them.
        """
        task, worlds, robot = self._scene.task, self._worlds, self.spec.robot
        target = task.control(worlds, wanted.astype(np.float64))
        target = np.minimum(np.maximum(target, robot.low), robot.high)
        rows = np.flatnonzero(active)
        self._host.fields.ctrl[rows[:, None], worlds.actuators] = target[rows]
        fault = self._host.step(self._scene.substeps, active)
        worlds.steps[active] += 1
        worlds.moving[:] = active & ~fault
        self._advance_tasks()
        success = task.success(worlds) & worlds.moving
        terminated = success | (task.failure(worlds) & worlds.moving)
        late = active & ~terminated & (worlds.steps >= self._time_limit)
        worlds.moving[:] = True
        self._success[active] = success[active]
        self._record_faults(fault)
        buffers = self._buffers
        buffers["reward"] += success
        buffers["steps"] += active
        buffers["terminated"] |= terminated
        buffers["truncated"] |= late | fault

    def _advance_tasks(self) -> None:
        """Advance the task's state machine in moving worlds alone."""
        worlds = self._worlds
        still = np.flatnonzero(~worlds.moving)
        saved = [values[still] for values in arrays_of(worlds.episode)] if len(still) else []
        self._scene.task.advance(worlds)
        for values, before in zip(arrays_of(worlds.episode), saved, strict=False):
            values[still] = before

    def _record_faults(self, fault: np.ndarray) -> None:
        self._fault |= fault
        if fault.any() and not self._warned:
            self._warned = True
            warnings.warn(
                f"simulation: {int(fault.sum())} of {self.num_envs} worlds failed (NaN, or too "
                "many contacts); their episodes are truncated and info['fault'] marks them",
                RuntimeWarning,
                stacklevel=4,
            )

    def _report(self, moved: np.ndarray) -> None:
        """Write success and progress of the worlds that moved, bool [e], before any reset."""
        buffers = self._buffers
        progress = self._scene.task.progress(self._worlds)
        buffers["success"][moved] = self._success[moved]
        buffers["progress"][moved] = np.where(self._fault, 0.0, progress)[moved]
        buffers["episode"][moved] = self._index[moved]
        if (buffers["terminated"] | buffers["truncated"]).any():
            buffers["goal"][:], buffers["achieved"][:] = ending(self._scene.task, self._worlds)

    def _reset_ended(self, ended: np.ndarray, moved: np.ndarray) -> Array:
        """Reset rows whose episode ended, i64, and observe the rows that moved, i64.

        Returns:
            Images of all rows before the reset.
        """
        if not len(ended):
            self._observe_rows(moved)
            return self._images
        before, sound = self._images, ended[~self._fault[ended]]
        last = self._render(sound) if len(sound) else None
        self._write_observation("final_", ended)
        self._begin(ended, self._seed[ended], self._index[ended] + self.num_envs)
        self._observe_rows(moved)
        final_images = _copy(self._images)
        wrong = ended[self._fault[ended]]
        final_images[wrong] = before[wrong]
        if last is not None:
            final_images[sound] = last
        return final_images

    def _begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> None:
        """Draw episodes and write all their worlds in one call."""
        drawn, world, worlds = [], self._scratch, self._worlds
        for row, seed_of_row, number in zip(
            rows.tolist(), seed.tolist(), index.tolist(), strict=True
        ):
            world.reset(seed_of_row, number)
            drawn.append(self._host.capture(world))
            if worlds.episode is None:
                worlds.episode = stacked(world.episode, self.num_envs)
            of_all, of_one = arrays_of(worlds.episode), arrays_of(world.as_batch.episode)
            for values, value in zip(of_all, of_one, strict=True):
                values[row] = value[0]
            self._time_limit[row] = world.time_limit
            self._buffers["instruction"][row] = self._instruction_ids[world.instruction]
            if row in self._mirrors:
                self._mirrors[row].release()
        worlds.steps[rows] = 0
        self._seed[rows], self._index[rows] = seed, index
        self._success[rows] = False
        if len(rows):
            self._host.write(rows, drawn)

    def _observe_rows(self, rows: np.ndarray) -> None:
        """Observe some rows, i64; the others keep their observation."""
        self._write_observation("", rows)
        if self._images is None or len(rows) == self.num_envs:
            self._images = self._render(np.arange(self.num_envs))
        elif len(rows):
            images = _copy(self._images)
            images[rows] = self._render(rows)
            self._images = images

    def _write_observation(self, prefix: str, rows: np.ndarray) -> None:
        """Write all of an observation but the images."""
        buffers, worlds = self._buffers, self._worlds
        if isinstance(self._scene.task, ChangesInstruction):
            buffers["instruction"][rows] = self._scene.task.instruction_index(worlds)[rows]
        if prefix:
            buffers[prefix + "instruction"][rows] = buffers["instruction"][rows]
        qpos = self._host.fields.qpos[rows[:, None], worlds.joint_qpos]
        buffers[prefix + "proprio"][rows] = qpos
        buffers[prefix + "time_s"][rows] = worlds.steps[rows] / self.spec.robot.control_hz

    def _render(self, rows: np.ndarray) -> Array:
        begin = time.perf_counter()
        images = self._host.engine.render(rows)
        self.render_time_s += time.perf_counter() - begin
        return images

    def _expert_action(self, row: int) -> np.ndarray:
        """Return the expert's action in a row, f32 [u]."""
        mirror = self._mirrors.get(row)
        if mirror is None:
            mirror = self._mirrors[row] = HostMirror(self._scene, vary=self._vary)
        return mirror.act(self._worlds, row, int(self._seed[row]), int(self._index[row]))


def _copy(images: Array) -> Array:
    return images.copy() if isinstance(images, np.ndarray) else images.clone()
