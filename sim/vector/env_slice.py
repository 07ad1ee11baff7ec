"""Steps a set of environments and writes the results to arrays, which may be shared memory."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sim.core.privileged_state import PrivilegedState
from sim.core.render import Camera, shared_renderer, update_images
from sim.core.scene import Scene
from sim.core.step_buffers import Buffers
from sim.core.task import HasLock, ending
from sim.core.world import MujocoWorld, SavedWorld
from sim.experts.expert_takeover import ExpertTakeover


class SavedRows(NamedTuple):
    """Environments as they were; see `EnvSlice.save`."""

    worlds: list[SavedWorld]
    seeds: list[int]
    buffers: Buffers


class EnvSlice:
    """Environments `rows` of `num_envs`; row i runs episodes i, i + E, i + 2E and so on."""

    def __init__(
        self, scene: Scene, buffers: Buffers, rows: range, num_envs: int, *, vary: bool
    ) -> None:
        """Make the environments of `rows`; `buffers` hold the rows of all `num_envs`."""
        self._rows = rows
        self._num_envs = num_envs
        self._buffers = buffers
        self._worlds = [MujocoWorld(scene, vary=vary) for _ in rows]
        renderer = shared_renderer(scene)
        self._cameras = [Camera(renderer, world) for world in self._worlds]
        self._instruction_ids = {text: i for i, text in enumerate(scene.task.instructions)}
        self._experts = [ExpertTakeover(world) for world in self._worlds]
        self.render_time_s = 0.0
        """Seconds spent on rendering so far."""
        self._seeds = [0] * len(rows)
        self._privileged = PrivilegedState(scene)

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> None:
        """Start other episodes in the rows of this slice; all arguments are i64 of one shape."""
        begun = []
        for row, *episode in zip(rows.tolist(), seed.tolist(), index.tolist(), strict=True):
            if row in self._rows:
                i = self._rows.index(row)
                begun.append(i)
                self._seeds[i] = episode[0]
                self._experts[i].release()
                self._worlds[i].reset(*episode)
        self._observe("", begun)

    def step(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> None:
        """Apply actions, float32 of shape (num_envs, h, u); reset the rows whose episode ends.

        In `use_expert` rows, bool of shape (num_envs,), the task's expert acts instead; in
        `frozen` rows nothing happens.
        """
        buffers = self._buffers
        ended, moved = [], []
        for i, (row, world) in enumerate(zip(self._rows, self._worlds, strict=True)):
            reward, steps, terminated, truncated = 0.0, 0, False, False
            if frozen is not None and frozen[row]:
                for name in ("reward", "steps", "terminated", "truncated"):
                    buffers[name][row] = 0
                continue
            moved.append(i)
            buffers["actions"][row, : actions.shape[1]] = actions[row]
            asked = use_expert is not None and bool(use_expert[row])
            for action in actions[row]:
                expert, seed = self._experts[i], self._seeds[i]
                wanted = expert.act(seed) if asked else action
                buffers["actions"][row, steps] = wanted
                gain, terminated, truncated = world.step(wanted)
                reward += gain
                steps += 1
                if terminated or truncated:
                    ended.append(i)
                    break
            if not asked or terminated or truncated:
                self._experts[i].release()
            buffers["reward"][row] = reward
            buffers["terminated"][row] = terminated
            buffers["truncated"][row] = truncated
            buffers["success"][row] = world.succeeded
            buffers["progress"][row] = world.progress()
            buffers["steps"][row] = steps
            buffers["episode"][row] = world.index
        if ended:
            self._observe("final_", ended)
            for i in ended:
                world = self._worlds[i]
                goal, achieved = ending(world.task, world.as_batch)
                buffers["goal"][self._rows[i]] = goal[0]
                buffers["achieved"][self._rows[i]] = achieved[0]
                world.reset(self._seeds[i], world.index + self._num_envs)
        self._observe("", moved)

    def save(self) -> SavedRows:
        """Return a copy of all environments of this slice as they are, for `restore`."""
        buffers = {name: part.copy() for name, part in self._buffers.items()}
        return SavedRows([world.save() for world in self._worlds], list(self._seeds), buffers)

    def restore(self, saved: SavedRows) -> None:
        """Set all environments of this slice, and what was observed, to a copy of them."""
        self._seeds = list(saved.seeds)
        for name, part in saved.buffers.items():
            self._buffers[name][:] = part
        for world, seed, kept in zip(self._worlds, saved.seeds, saved.worlds, strict=True):
            world.restore(kept, seed)
        for expert in self._experts:
            expert.release()

    def is_locked(self) -> np.ndarray:
        """Return where a task holds the arm, bool [rows]; nowhere in a task that never does."""
        task = self._worlds[0].task
        if not isinstance(task, HasLock):
            return np.zeros(len(self._worlds), np.bool_)
        return np.concatenate([task.is_locked(world.as_batch) for world in self._worlds])

    def write_privileged_state(self) -> None:
        """Write the privileged state of the rows of this slice that have begun."""
        for row, world in self._begun():
            self._buffers["privileged_state"][row] = self._privileged.read(world.as_batch)[0]

    def write_referents(self) -> None:
        """Write where the things that an instruction names are, in the rows that have begun."""
        for row, world in self._begun():
            self._buffers["referents"][row] = world.referents()

    def _begun(self) -> Iterator[tuple[int, MujocoWorld]]:
        """Yield the rows of this slice that have an episode, and their worlds."""
        for row, world in zip(self._rows, self._worlds, strict=True):
            if world.index >= 0:
                yield row, world

    def _observe(self, prefix: str, mine: Sequence[int]) -> None:
        begin = time.perf_counter()
        update_images([self._cameras[i] for i in mine])
        self.render_time_s += time.perf_counter() - begin
        buffers = self._buffers
        for i in mine:
            row, world = self._rows[i], self._worlds[i]
            buffers[prefix + "images"][row] = self._cameras[i].images
            buffers[prefix + "proprio"][row] = world.proprio
            buffers[prefix + "instruction"][row] = self._instruction_ids[world.instruction]
            buffers[prefix + "time_s"][row] = world.time_s
