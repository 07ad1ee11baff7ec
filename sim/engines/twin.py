"""The host's copy of one of an engine's worlds, in which the task's expert finds its way."""

import mujoco
import numpy as np

from sim.relay import Relay
from sim.scene import Scene
from sim.world import MujocoWorld
from sim.worlds import ArrayWorlds, cut_out

STATE = ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat")


class Twin:
    """Follows one row: brought to where that world stands whenever the expert is asked."""

    def __init__(self, scene: Scene, *, vary: bool) -> None:
        """Make a world of the scene; `vary` as in `MujocoWorld`."""
        self._world = MujocoWorld(scene, vary=vary)
        self._relay = Relay(self._world)
        self._episode = (-1, -1)

    def act(self, worlds: ArrayWorlds, row: int, seed: int, index: int) -> np.ndarray:
        """Return the expert's action f32 [u] for the control step that begins now.

        Args:
            worlds: The worlds of the engine.
            row: Which of them.
            seed: Of its episode.
            index: Of its episode among those of the seed.
        """
        world, alone = self._world, self._world.alone
        if self._episode != (seed, index):
            # The model of the episode: where things stand that do not move, what they weigh.
            world.reset(seed, index)
            alone.episode = cut_out(worlds.episode, row)
            self._relay.rest_()
            self._episode = seed, index
        alone.steps[:] = worlds.steps[row]
        for name in STATE:
            getattr(alone.fields, name)[0] = getattr(worlds.fields, name)[row]
        mujoco.mj_kinematics(world.model, world.data)
        return self._relay.next_(seed)

    def rest_(self) -> None:
        """Note that the expert does not lead any more: next time it looks anew."""
        self._relay.rest_()
