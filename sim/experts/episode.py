"""Records one scripted episode, with images, as arrays; writes no files."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.vec_env import load_robot, load_task
from vla.contracts import referents
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec

RECOVERY_STEPS = 50
"""Most control steps of the clumsy expert before a recovery is recorded."""
MISJUDGED_M = 0.015
"""Standard deviation of its error about where its hand is, in x and y."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One episode: row t is the observation before action t, with its labels.

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
    """Instruction at the first step."""
    behaviour: str
    """One of `sim.experts.behaviours.NAMES`; for "mixed" the drawn one."""
    labels: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Further columns by name, float32, shape (t,): `vla.contracts.referents`."""
    instructions: tuple[str, ...] = ()
    """Instruction at every step, where it changes; else nothing."""


def record_episode(  # noqa: PLR0913
    task: str,
    seed: int,
    index: int,
    behaviour: str = "expert",
    robot: str | RobotSpec | None = None,
    task_config: PluginConfig | None = None,
    render: bool = True,
    visual_shift: str = "none",
    recovery_fraction: float = 0.0,
) -> EpisodeRecord:
    """Record episode `index` of `seed` of a scripted behaviour; equal arguments give equal bits.

    A record ends with the episode (only "undo" continues after success) or with the script. With
    a probability of `recovery_fraction` it begins where a clumsy expert came to in up to
    `RECOVERY_STEPS` steps, which are not recorded: fewer of them where the episode ends in them,
    or the behaviour has no success after them.

    Raises:
        ValueError: a name is unknown, or the task does not support the behaviour.
    """
    world, camera = _world_and_camera(
        load_task(task, task_config), load_robot(robot), render, visual_shift
    )
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]).spawn(3)[2])
    behaviour = behaviours.resolve(world.task, behaviour, rng)
    if recovery_fraction > 0.0 and rng.random() < recovery_fraction:
        most = RECOVERY_STEPS
        while most > 0:
            world.reset(seed, index)
            if _went_wrong(world, most, rng):
                record = _record(world, camera, behaviour, rng)
                if record.success.any():
                    return record
            most = min(most, world.steps) // 2
    world.reset(seed, index)
    return _record(world, camera, behaviour, rng)


def _went_wrong(world: MujocoWorld, most: int, rng: np.random.Generator) -> bool:
    """Let a clumsy expert act for up to `most` steps; return whether the episode goes on then.

    It misjudges where its hand is, so that it takes hold beside things, and its actions are noisy.
    """
    world.tool_error_m[:] = rng.normal(0.0, MISJUDGED_M, 3) * (1.0, 1.0, 0.3)
    steps = range(rng.integers(1, most + 1))
    stream = behaviours.act_stream(world, world.task, "noisy", rng)
    ended = False
    for _, action in zip(steps, stream, strict=False):
        ended = any(world.step(np.asarray(action, np.float32))[1:])
        if ended:
            break
    world.tool_error_m[:] = 0.0
    return not ended


def _record(
    world: MujocoWorld, camera: Camera | None, behaviour: str, rng: np.random.Generator
) -> EpisodeRecord:
    """Record a behaviour from the present state of the world on."""
    stream = behaviours.act_stream(world, world.task, behaviour, rng)
    past_success = behaviours.continues_after_success(behaviour)
    frames, proprio, actions, success, progress = [], [], [], [], []
    labels: list[np.ndarray] = []
    instructions: list[str] = []
    for action in _until_over(world, stream, past_success=past_success):
        frames.append(camera.render().copy() if camera else np.empty((0, 0, 0, 3), np.uint8))
        proprio.append(world.proprio)
        actions.append(np.asarray(action, np.float32))
        instructions.append(world.instruction)
        success.append(world.succeeded)
        progress.append(world.progress())
        where = world.referents()
        if where is not None:
            labels.append(where.ravel())
    return EpisodeRecord(
        images=np.stack(frames),
        proprio=np.stack(proprio),
        action=np.stack(actions),
        success=np.array(success, np.bool_),
        progress=np.array(progress, np.float32),
        instruction=instructions[0],
        behaviour=behaviour,
        labels=referents.by_column(world.robot, labels),
        instructions=tuple(instructions) if len(set(instructions)) > 1 else (),
    )


def _until_over(
    world: MujocoWorld, stream: Iterator[np.ndarray], *, past_success: bool
) -> Iterator[np.ndarray]:
    """Yield each action before it is executed, and the last action again at the end."""
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
def _world_and_camera(
    task: PluginConfig, robot: RobotSpec, render: bool, visual_shift: str
) -> tuple[MujocoWorld, Camera | None]:
    """Return a world and its camera, cached for the next episode of the same kind."""
    scene = compile_scene(task, robot)
    world = MujocoWorld(scene, visual_shift=visual_shift)
    return world, Camera(shared_renderer(scene), world) if render else None
