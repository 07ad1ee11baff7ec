"""A world that goes on by small ticks, as a real arm does, and pictures of it from a thread.

It knows no clock: whoever calls `tick_` decides when.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from sim.relay import Relay
from sim.render import MODEL_LOOKS, Camera, shared_renderer
from sim.scene import TIMESTEP_S, Scene
from sim.world import MujocoWorld


class Live:
    """One arm and its episodes; after an episode's end the arm still obeys, but nothing counts."""

    def __init__(self, scene: Scene, physics_hz: int) -> None:
        """Make a world; call `begin_` before the first tick.

        Args:
            scene: Compiled scene; only read.
            physics_hz: Ticks in a second.

        Raises:
            ValueError: a tick is no whole number of physics steps, or a control step none of ticks.
        """
        substeps = round(1 / (physics_hz * TIMESTEP_S))
        if abs(substeps * physics_hz * TIMESTEP_S - 1) > 1e-9 or scene.substeps % substeps:
            control_hz = scene.robot.control_hz
            raise ValueError(
                f"physics_hz: got {physics_hz}; a tick has to be a whole number of physics steps "
                f"of {TIMESTEP_S:g} s and a control step of 1/{control_hz:g} s one of ticks: "
                f"{', '.join(map(str, _rates(scene)))} are right"
            )
        self.world = MujocoWorld(scene)
        self.seed = 0
        self.terminated = False
        self.truncated = False
        self.waits = False
        """Whether the episode's time stands still: the arm obeys, and nothing counts yet."""
        self.ticks_per_step = scene.substeps // substeps
        """Ticks of a control step."""
        self._expert = Relay(self.world)
        self._substeps = substeps
        self._ticks = 0

    @property
    def running(self) -> bool:
        """Whether the episode has not ended."""
        return not (self.terminated or self.truncated)

    def begin_(self, seed: int, episode: int) -> None:
        """Begin episode number `episode` of a seed; arm and objects jump to its start."""
        self.world.reset(seed, episode)
        self._begin_(seed)

    def go_on_(self, seed: int, episode: int) -> None:
        """Begin it in the world as it is: a new goal and instruction, and nothing jumps.

        Raises:
            ValueError: things lie about in this task.
        """
        self.world.go_on(seed, episode)
        self._begin_(seed)

    def _begin_(self, seed: int) -> None:
        self.seed = seed
        self.terminated = self.truncated = False
        self._expert.rest_()
        self._ticks = 0

    def guide_(self) -> np.ndarray:
        """Return what the task's expert would do for a control step from now on, f32 [u]."""
        return self._expert.next_(self.seed)

    def let_go_(self) -> None:
        """Note that the expert does not lead any more: next time it looks anew."""
        self._expert.rest_()

    def tick_(self, target: np.ndarray) -> bool:
        """Hold position targets, shape (u,), for a tick; return whether a control step ended."""
        self.world.drive_(target, self._substeps)
        if self.waits:
            return False
        self._ticks += 1
        if not self.running or self._ticks % self.ticks_per_step:
            return False
        _, self.terminated, self.truncated = self.world.count_()
        return True

    def state(self) -> dict[str, Any]:
        """Return where the episode stands, as JSON types."""
        world = self.world
        return {
            "number": world.index,
            "seed": self.seed,
            "instruction": world.instruction,
            "steps": world.steps,
            "success": bool(world.succeeded),
            "progress": world.progress(),
            "terminated": bool(self.terminated),
            "truncated": bool(self.truncated),
            "running": self.running,
        }


class Photographer:
    """Draws a world in a thread, which owns this process's OpenGL context, from a copy of it.

    So the world goes on meanwhile. Nothing else of the process may draw.
    """

    def __init__(self, world: MujocoWorld, told: Callable[[np.ndarray, Any, float], None]) -> None:
        """Start the thread.

        Args:
            world: What is photographed.
            told: Called in the thread with pictures u8 [v, h, w, 3], which the next ones overwrite,
                the tag they were asked for with, and the seconds that drawing took.

        Raises:
            ValueError: there is no OpenGL; the message says what to install.
        """
        self._world = world
        self._still = MujocoWorld(world.scene)
        self._told = told
        self._tags: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="photographer", daemon=True)
        self._thread.start()
        self._idle.wait()
        self._check()

    def shoot(self, tag: Any) -> bool:
        """Ask for pictures of the world as it stands now.

        Returns:
            Whether there will be any: False while the last ones are still being drawn.
        """
        self._check()
        if not self._idle.is_set():
            return False
        self._idle.clear()
        still, world = self._still, self._world
        mujoco.mj_copyData(still.data, world.model, world.data)
        for name in MODEL_LOOKS:
            getattr(still.model, name)[:] = getattr(world.model, name)
        self._tags.put((tag,))
        return True

    def rest(self) -> None:
        """Wait until the last pictures are drawn: the next that are asked for will be as well."""
        self._idle.wait()

    def close(self) -> None:
        """End the thread."""
        self._tags.put(None)
        self._thread.join(5.0)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            camera = Camera(shared_renderer(self._world.scene), self._still)
            self._idle.set()
            while (asked := self._tags.get()) is not None:
                begin = time.perf_counter()
                images = camera.shoot()
                self._told(images, asked[0], time.perf_counter() - begin)
                self._idle.set()
        except Exception as error:  # noqa: BLE001  # raised again where pictures are asked for
            self._error = error
            self._idle.set()


def _rates(scene: Scene) -> list[int]:
    """Return the tick rates that fit a scene."""
    return [
        round(1 / (n * TIMESTEP_S))
        for n in range(scene.substeps, 0, -1)
        if scene.substeps % n == 0 and abs(1 / (n * TIMESTEP_S) % 1) < 1e-9
    ]
