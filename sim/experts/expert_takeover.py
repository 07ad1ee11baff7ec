"""The task's expert, which takes over in the middle of an episode and gives back."""

from collections.abc import Iterator

import numpy as np

from sim.core.world import MujocoWorld
from sim.experts import behaviours


class ExpertTakeover:
    """The expert's actions in one world, from any state of the world."""

    def __init__(self, world: MujocoWorld) -> None:
        self._world = world
        self._stream: Iterator[np.ndarray] | None = None

    def act(self, seed: int) -> np.ndarray:
        """Return the expert's action f32 [u] for the control step that begins now.

        It continues its script, and restarts a finished one while the episode of `seed` runs.
        """
        world = self._world
        action = next(self._stream, None) if self._stream else None
        if action is None:
            rng = np.random.default_rng([seed, world.index, world.steps])
            self._stream = behaviours.act_stream(world, world.task, "expert", rng)
            action = next(self._stream, world.proprio)
        return np.asarray(action, np.float32)

    def release(self) -> None:
        """Drop the plan: the next action starts from the state at that time."""
        self._stream = None
