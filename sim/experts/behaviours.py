"""Behaviours in a task, from expert to random; each task scripts its own failures.

Reward models and labellers learn from failures as much as from success, so every failure has a
name. A task lists its scripts besides "expert" in `variants`; freezing and random motion work in
every task.
"""

from collections.abc import Iterator

import numpy as np

from sim.core.task import Task, World

SCRIPTED = ("drop", "slip", "undo", "wrong_object", "near_miss", "overshoot", "hover")
"""Behaviours of a task's script, if the task lists them in `variants`."""
GENERIC = ("freeze", "random", "noisy")
"""Behaviours that work in every task."""
NAMES = ("expert", *SCRIPTED, *GENERIC, "mixed")
"""Every behaviour; "mixed" draws a supported one for each episode."""

EXPERT_SHARE = 0.25
NOISY_SHARE = 0.25
FREEZE_STEPS = 20
RANDOM_STEPS = 40
NOISE = 0.02
"""Largest standard deviation of the noise on a noisy expert's channels, as a share of their range:
about 2 cm at the hand of the SO-101."""


def supported(task: Task) -> tuple[str, ...]:
    """Return the behaviours that a task supports, without "mixed"."""
    return ("expert", *(name for name in SCRIPTED if name in task.variants), *GENERIC)


def check_supported(task: Task, behaviour: str) -> None:
    """Raise ValueError if the task does not support a behaviour."""
    choices = (*supported(task), "mixed")
    if behaviour not in choices:
        raise ValueError(
            f"behaviour: got {behaviour!r}, expected one of this task's: {', '.join(choices)}"
        )


def resolve(task: Task, behaviour: str, rng: np.random.Generator) -> str:
    """Return `behaviour`, or one drawn for the episode if it is "mixed": expert and noisy expert
    one in four each, the others alike.

    Raises:
        ValueError: there is no such behaviour, or it makes no sense in this task.
    """
    check_supported(task, behaviour)
    if behaviour == "mixed":
        others = [name for name in supported(task) if name not in ("expert", "noisy")]
        share = rng.random()
        if share < EXPERT_SHARE:
            return "expert"
        if share < EXPERT_SHARE + NOISY_SHARE:
            return "noisy"
        return others[int(rng.integers(len(others)))]
    return behaviour


def continues_after_success(behaviour: str) -> bool:
    """Return whether an episode continues after success, so that the behaviour can undo it."""
    return behaviour == "undo"


def act_stream(
    world: World, task: Task, behaviour: str, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Return an iterator over actions (position targets, shape (u,)), one per control step.

    Each action is computed on demand from the present state of the world.

    Args:
        world: A world whose episode has just begun.
        task: Its task.
        behaviour: One of `NAMES`.
        rng: Randomness of the behaviour; the layout has its own.

    Raises:
        ValueError: there is no such behaviour, or it makes no sense in this task.
    """
    behaviour = resolve(task, behaviour, rng)
    if behaviour == "freeze":
        return _freeze(world, task, rng)
    if behaviour == "random":
        return _random(world, task, rng)
    if behaviour == "noisy":
        return _noisy(world, task, rng)
    return task.script(world, behaviour)


def _freeze(world: World, task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    stop_at = rng.uniform(0.1, 0.6)
    for action in task.script(world, "expert"):
        if world.progress() >= stop_at:
            break
        yield action
    hold = world.data.qpos[world.joint_qpos].copy()
    for _ in range(FREEZE_STEPS):
        yield hold


def _random(world: World, task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    robot = world.robot
    low, high = np.asarray(robot.low), np.asarray(robot.high)
    stride = np.minimum(
        0.02 * (high - low), [0.3 * c.velocity / robot.control_hz for c in robot.channels]
    )
    velocity: np.ndarray = np.zeros(len(stride))
    moved = 0
    while moved < RANDOM_STEPS and world.steps < world.time_limit:
        # An autoregressive walk of unit variance: smooth, and different in every joint.
        velocity = 0.8 * velocity + 0.6 * rng.standard_normal(len(stride))
        action = np.clip(world.data.qpos[world.joint_qpos] + stride * velocity, low, high)
        # While a task locks the arm, random motion looks like the expert.
        moved += np.array_equal(task.control(world.as_batch, action[None])[0], action)
        yield action


def _noisy(world: World, task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Run the expert with noise on its actions, again and again until the time limit.

    A reward model trained on the expert's successes alone does not know a learner's. Noise on the
    expert's actions shows such errors (DART, Laskey et al. 2017, arXiv 1703.09327); here it is
    autocorrelated, like the errors of a policy that misjudges where objects are.
    """
    low, high = np.asarray(world.robot.low), np.asarray(world.robot.high)
    spread = rng.uniform(0, NOISE) * (high - low)
    correlation = rng.uniform(0.8, 0.98)
    error = rng.standard_normal(len(low))
    acted = True
    while acted:
        acted = False
        for action in task.script(world, "expert"):
            acted = True
            yield np.clip(action + spread * error, low, high)
            error = correlation * error + np.sqrt(1 - correlation**2) * rng.standard_normal(
                len(low)
            )
