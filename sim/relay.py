"""A task's expert, taken up in the middle of an episode and given back again."""

from collections.abc import Iterator

import numpy as np

from sim import behaviours
from sim.world import MujocoWorld


class Relay:
    """Acts in one world for as long as it is asked, from whatever state the world is in."""

    def __init__(self, world: MujocoWorld) -> None:
        self._world = world
        self._stream: Iterator[np.ndarray] | None = None

    def next_(self, seed: int) -> np.ndarray:
        """Return the expert's action f32 [u] for the control step that begins now.

        It goes on where it was, and begins anew where it thought that it had done: the episode is
        not over.

        Args:
            seed: Of the episode.
        """
        world = self._world
        action = next(self._stream, None) if self._stream else None
        if action is None:
            rng = np.random.default_rng([seed, world.index, world.steps])
            self._stream = behaviours.act_stream(world, world.task, "expert", rng)
            action = next(self._stream, world.proprio)
        return np.asarray(action, np.float32)

    def rest_(self) -> None:
        """Give back: the arm moves without it, and later it looks anew."""
        self._stream = None
