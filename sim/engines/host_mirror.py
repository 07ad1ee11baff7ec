"""A MuJoCo copy of one of an engine's worlds, on which the task's expert plans."""

import mujoco
import numpy as np

from sim.core.scene import Scene
from sim.core.world import MujocoWorld
from sim.core.worlds import Worlds, cut_out
from sim.engines.engine import STATE
from sim.experts.expert_takeover import ExpertTakeover


class HostMirror:
    """Mirrors one row: set to the state of that world for each action of the expert."""

    def __init__(self, scene: Scene, *, vary: bool) -> None:
        """Make a world of the scene; `vary` as in `MujocoWorld`."""
        self._world = MujocoWorld(scene, vary=vary)
        self._expert = ExpertTakeover(self._world)
        self._episode = (-1, -1)

    def act(self, worlds: Worlds, row: int, seed: int, index: int) -> np.ndarray:
        """Return the expert's action f32 [u] for the control step of a row that begins now.

        The row's episode is number `index` of `seed`.
        """
        world, batch = self._world, self._world.as_batch
        if self._episode != (seed, index):
            # The model of the episode has its fixed poses and masses.
            world.reset(seed, index)
            batch.episode = cut_out(worlds.episode, row)
            self._expert.release()
            self._episode = seed, index
        batch.steps[:] = worlds.steps[row]
        for name in STATE:
            getattr(batch.fields, name)[0] = getattr(worlds.fields, name)[row]
        mujoco.mj_kinematics(world.model, world.data)
        return self._expert.act(seed)

    def release(self) -> None:
        """Drop the expert's plan: its next action starts from the state at that time."""
        self._expert.release()
