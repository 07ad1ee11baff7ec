"""Records one scripted episode, with images, as arrays; writes no files."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from sim import behaviours
from sim.render import Camera, shared_renderer
from sim.scene import compile_scene
from sim.vec_env import load_robot, load_task
from sim.world import MujocoWorld
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One episode: row t is the observation before action t, and what was true of it.

    The last row is the end of the episode; its action repeats the one before it.
    """

    images: np.ndarray
    """RGB, uint8, shape (t, views, height, width, 3); no views if not rendered."""
    proprio: np.ndarray
    """Measured channel positions, float32, shape (t, u)."""
    action: np.ndarray
    """Position targets, float32, shape (t, u)."""
    success: np.ndarray
    """Whether the task is solved, bool, shape (t,)."""
    progress: np.ndarray
    """Oracle progress in [0, 1], float32, shape (t,)."""
    instruction: str
    """What the arm was told."""
    behaviour: str
    """Who acted: one of `sim.behaviours.NAMES`; if "mixed" was asked for, the one drawn."""


def record_episode(
    task: str,
    seed: int,
    index: int,
    behaviour: str = "expert",
    robot: str | RobotSpec | None = None,
    task_config: PluginConfig | None = None,
    render: bool = True,
    looks: str = "usual",
) -> EpisodeRecord:
    """Play episode `index` of `seed` with a scripted behaviour; the same arguments, the same bits.

    A record ends where the episode does (only "undo" goes on after success), or where the
    behaviour has nothing more to do.

    Raises:
        ValueError: a name is unknown, or the task does not know the behaviour.
    """
    world, camera = _studio(load_task(task, task_config), load_robot(robot), render, looks)
    world.reset(seed, index)
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]).spawn(3)[2])
    behaviour = behaviours.resolve(world.task, behaviour, rng)
    stream = behaviours.act_stream(world, world.task, behaviour, rng)
    go_on = behaviours.keeps_going(behaviour)
    frames, proprio, actions, success, progress = [], [], [], [], []
    for action in _until_over(world, stream, past_success=go_on):
        frames.append(camera.shoot().copy() if camera else np.empty((0, 0, 0, 3), np.uint8))
        proprio.append(world.proprio)
        actions.append(np.asarray(action, np.float32))
        success.append(world.succeeded)
        progress.append(world.progress())
    return EpisodeRecord(
        images=np.stack(frames),
        proprio=np.stack(proprio),
        action=np.stack(actions),
        success=np.array(success, np.bool_),
        progress=np.array(progress, np.float32),
        instruction=world.instruction,
        behaviour=behaviour,
    )


def _until_over(
    world: MujocoWorld, stream: Iterator[np.ndarray], *, past_success: bool
) -> Iterator[np.ndarray]:
    """Yield each action before it is executed, and the last one again when all is over."""
    action = np.array(world.robot.home)
    for action in stream:
        yield action
        # Records hold float32, so a replay of them must see what the world saw.
        _, terminated, truncated = world.step(np.asarray(action, np.float32))
        ignore = past_success and world.succeeded and world.steps < world.time_limit
        if truncated or (terminated and not ignore):
            break
    yield action


@functools.lru_cache(maxsize=4)
def _studio(
    task: PluginConfig, robot: RobotSpec, render: bool, looks: str
) -> tuple[MujocoWorld, Camera | None]:
    """Return a world and its camera, kept for the next episode of the same kind."""
    scene = compile_scene(task, robot)
    world = MujocoWorld(scene, looks=looks)
    return world, Camera(shared_renderer(scene), world) if render else None
