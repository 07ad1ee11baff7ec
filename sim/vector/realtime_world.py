"""A world that advances by small ticks, as a real arm does, and its images from a thread.

It has no clock: the caller of `tick` decides when.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from sim.core.render import MODEL_APPEARANCE, Camera, shared_renderer
from sim.core.scene import TIMESTEP_S, Scene
from sim.core.world import MujocoWorld
from sim.experts.expert_takeover import ExpertTakeover


class RealtimeWorld:
    """One arm and its episodes; after an episode's end the arm still moves, but nothing counts."""

    def __init__(self, scene: Scene, physics_hz: int) -> None:
        """Make a world of `physics_hz` ticks in a second; call `begin` before the first tick.

        Raises:
            ValueError: a tick is not a whole number of physics steps, or a control step of ticks.
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
        self.paused = False
        """Whether the episode's time stands still while the arm moves."""
        self.ticks_per_step = scene.substeps // substeps
        """Ticks per control step."""
        self._expert = ExpertTakeover(self.world)
        self._substeps = substeps
        self._ticks = 0

    @property
    def running(self) -> bool:
        """Whether the episode has not ended."""
        return not (self.terminated or self.truncated)

    def begin(self, seed: int, episode: int) -> None:
        """Begin episode number `episode` of a seed; arm and objects jump to its start."""
        self.world.reset(seed, episode)
        self._begin(seed)

    def begin_in_place(self, seed: int, episode: int) -> None:
        """Begin it without a reset: a new goal and instruction, and nothing jumps.

        Raises:
            ValueError: the task has objects that a reset would move.
        """
        self.world.begin_in_place(seed, episode)
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        self.seed = seed
        self.terminated = self.truncated = False
        self._expert.release()
        self._ticks = 0

    def expert_action(self) -> np.ndarray:
        """Return the expert's action for the control step that begins now, f32 [u]."""
        return self._expert.act(self.seed)

    def release_expert(self) -> None:
        """Drop the expert's plan: its next action starts from the state at that time."""
        self._expert.release()

    def tick(self, target: np.ndarray) -> bool:
        """Hold position targets, shape (u,), for a tick; return whether a control step ended."""
        self.world.drive(target, self._substeps)
        if self.paused:
            return False
        self._ticks += 1
        if not self.running or self._ticks % self.ticks_per_step:
            return False
        _, self.terminated, self.truncated = self.world.end_step()
        return True

    def state(self) -> dict[str, Any]:
        """Return the state of the episode as JSON types."""
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


class RenderThread:
    """Renders copies of a world in a thread, which owns this process's OpenGL context.

    The world can step meanwhile. Nothing else in the process may render.
    """

    def __init__(
        self, world: MujocoWorld, on_images: Callable[[np.ndarray, Any, float], None]
    ) -> None:
        """Start the thread.

        Args:
            world: The world to render.
            on_images: Called in the thread with images u8 [v, h, w, 3], which the next ones
                overwrite, the tag of their request, and the seconds that rendering took.

        Raises:
            ValueError: there is no OpenGL; the message says what to install.
        """
        self._world = world
        self._snapshot = MujocoWorld(world.scene)
        self._on_images = on_images
        self._tags: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="renderer", daemon=True)
        self._thread.start()
        self._idle.wait()
        self._check()

    def request(self, tag: Any) -> bool:
        """Request images of the present state of the world.

        Returns:
            False while the last request is still being rendered; then nothing was requested.
        """
        self._check()
        if not self._idle.is_set():
            return False
        self._idle.clear()
        snapshot, world = self._snapshot, self._world
        mujoco.mj_copyData(snapshot.data, world.model, world.data)
        for name in MODEL_APPEARANCE:
            getattr(snapshot.model, name)[:] = getattr(world.model, name)
        self._tags.put((tag,))
        return True

    def wait(self) -> None:
        """Wait until the last request is done."""
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
            camera = Camera(shared_renderer(self._world.scene), self._snapshot)
            self._idle.set()
            while (request := self._tags.get()) is not None:
                begin = time.perf_counter()
                images = camera.render()
                self._on_images(images, request[0], time.perf_counter() - begin)
                self._idle.set()
        except Exception as error:  # noqa: BLE001  # `request` raises it again
            self._error = error
            self._idle.set()


def _rates(scene: Scene) -> list[int]:
    """Return the tick rates in hertz that fit a scene."""
    return [
        round(1 / (n * TIMESTEP_S))
        for n in range(scene.substeps, 0, -1)
        if scene.substeps % n == 0 and abs(1 / (n * TIMESTEP_S) % 1) < 1e-9
    ]
