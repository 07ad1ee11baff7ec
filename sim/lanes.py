"""Steps a set of environments and writes what they show into arrays, which may be shared memory."""

import time
from collections.abc import Sequence

import numpy as np

from sim.relay import Relay
from sim.render import Camera, shared_renderer, shoot_
from sim.report import Buffers
from sim.scene import Scene
from sim.world import MujocoWorld


class Lanes:
    """Environments `rows` of `num_envs`; row i plays the episodes i, i + E, i + 2E and so on."""

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
        self._experts = [Relay(world) for world in self._worlds]
        self.render_s = 0.0
        """Seconds spent on pictures so far."""
        self._seeds = [0] * len(rows)

    def reset(self, seed: int) -> None:
        """Start episode i in row i."""
        self._seeds = [seed] * len(self._rows)
        for row, world, expert in zip(self._rows, self._worlds, self._experts, strict=True):
            expert.rest_()
            world.reset(seed, row)
        self._observe("", range(len(self._worlds)))

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> None:
        """Start other episodes in those of some rows that are here; all are i64 of one shape."""
        ours = [(int(r), int(s), int(i)) for r, s, i in zip(rows, seed, index, strict=True)
                if int(r) in self._rows]  # fmt: skip
        lanes = [self._rows.index(row) for row, _, _ in ours]
        for lane, (_, seed_of_row, number) in zip(lanes, ours, strict=True):
            self._seeds[lane] = seed_of_row
            self._experts[lane].rest_()
            self._worlds[lane].reset(seed_of_row, number)
        self._observe("", lanes)

    def step(
        self, actions: np.ndarray, helped: np.ndarray | None = None, idle: np.ndarray | None = None
    ) -> None:
        """Apply actions, float32 of shape (num_envs, h, u); reset the rows whose episode ends.

        In rows that are `helped`, bool of shape (num_envs,), the task's expert acts instead; in
        those that are `idle`, of the same shape, nothing happens.
        """
        buffers = self._buffers
        ended, moved = [], []
        for lane, (row, world) in enumerate(zip(self._rows, self._worlds, strict=True)):
            reward, steps, terminated, truncated = 0.0, 0, False, False
            if idle is not None and idle[row]:
                for name in ("reward", "steps", "terminated", "truncated"):
                    buffers[name][row] = 0
                continue
            moved.append(lane)
            buffers["actions"][row, : actions.shape[1]] = actions[row]
            asked = helped is not None and bool(helped[row])
            for action in actions[row]:
                expert, seed = self._experts[lane], self._seeds[lane]
                wanted = expert.next_(seed) if asked else action
                buffers["actions"][row, steps] = wanted
                gain, terminated, truncated = world.step(wanted)
                reward += gain
                steps += 1
                if terminated or truncated:
                    ended.append(lane)
                    break
            if not asked or terminated or truncated:
                self._experts[lane].rest_()
            buffers["reward"][row] = reward
            buffers["terminated"][row] = terminated
            buffers["truncated"][row] = truncated
            buffers["success"][row] = world.succeeded
            buffers["progress"][row] = world.progress()
            buffers["steps"][row] = steps
            buffers["episode"][row] = world.index
        if ended:
            self._observe("final_", ended)
            for lane in ended:
                world = self._worlds[lane]
                world.reset(self._seeds[lane], world.index + self._num_envs)
        self._observe("", moved)

    def _observe(self, prefix: str, lanes: Sequence[int]) -> None:
        begin = time.perf_counter()
        shoot_([self._cameras[lane] for lane in lanes])
        self.render_s += time.perf_counter() - begin
        buffers = self._buffers
        for lane in lanes:
            row, world = self._rows[lane], self._worlds[lane]
            buffers[prefix + "images"][row] = self._cameras[lane].images
            buffers[prefix + "proprio"][row] = world.proprio
            buffers[prefix + "instruction"][row] = self._instruction_ids[world.instruction]
            buffers[prefix + "time_s"][row] = world.time_s
