"""Ways to behave in a task, from expert to random; what is peculiar to a task is in its script.

Critics and labellers learn from failures as much as from success, so every way of failing has a
name. A task lists the scripts it has beside "expert" in an attribute `variants`; freezing and
moving at random work everywhere.
"""

from collections.abc import Iterator

import numpy as np

from sim.task import Task, World

SCRIPTED = ("drop", "slip", "undo", "wrong_object", "near_miss", "overshoot", "hover")
"""Behaviours that a task's own script plays, if the task lists them in `variants`."""
GENERIC = ("freeze", "random", "noisy")
"""Behaviours that work in every task."""
NAMES = ("expert", *SCRIPTED, *GENERIC, "mixed")
"""Every behaviour; "mixed" draws one of those that the task supports, episode by episode."""

EXPERT_SHARE = 0.25
NOISY_SHARE = 0.25
FREEZE_STEPS = 20
RANDOM_STEPS = 40
NOISE = 0.02
"""Largest standard deviation of the noise on a noisy expert's channels, as a share of their range:
on an arm as long as the SO-101 the hand is some 2 cm off."""


def supported(task: Task) -> tuple[str, ...]:
    """Return the behaviours that make sense in a task, without "mixed"."""
    own = getattr(task, "variants", ())
    return ("expert", *(name for name in SCRIPTED if name in own), *GENERIC)


def check_supported(task: Task, behaviour: str) -> None:
    """Raise ValueError if there is no such behaviour, or it makes no sense in this task."""
    known = (*supported(task), "mixed")
    if behaviour not in known:
        raise ValueError(
            f"behaviour {behaviour!r} is not one this task supports; choose from {', '.join(known)}"
        )


def resolve(task: Task, behaviour: str, rng: np.random.Generator) -> str:
    """Return `behaviour`, or one drawn for the episode if it is "mixed": expert and noisy expert
    one in four each, the others alike.

    Raises:
        ValueError: there is no such behaviour, or it makes no sense in this task.
    """
    check_supported(task, behaviour)
    known = supported(task)
    if behaviour == "mixed":
        others = [name for name in known if name not in ("expert", "noisy")]
        share = rng.random()
        if share < EXPERT_SHARE:
            return "expert"
        if share < EXPERT_SHARE + NOISY_SHARE:
            return "noisy"
        return others[int(rng.integers(len(others)))]
    return behaviour


def keeps_going(behaviour: str) -> bool:
    """Return whether an episode goes on after success, so that what was done can be undone."""
    return behaviour == "undo"


def act_stream(
    world: World, task: Task, behaviour: str, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Return one action (position targets, shape (u,)) per control step; it ends with the act.

    Each action is computed when it is asked for, from the state the world then has.

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
    while moved < RANDOM_STEPS:
        # An autoregressive walk of unit variance: smooth, and different in every joint.
        velocity = 0.8 * velocity + 0.6 * rng.standard_normal(len(stride))
        action = np.clip(world.data.qpos[world.joint_qpos] + stride * velocity, low, high)
        # While a task locks the arm nobody can tell random from expert.
        moved += np.array_equal(task.control(world.alone, action[None])[0], action)
        yield action


def _noisy(world: World, task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Play the expert, pushed off its way, again and again until time is up.

    A critic that knows only the expert's way of succeeding does not know a learner's. Noise on
    an expert's actions shows such errors (DART, Laskey et al. 2017, arXiv 1703.09327); here it
    is slow, as the errors of a policy are that takes things to lie where they do not.
    """
    low, high = np.asarray(world.robot.low), np.asarray(world.robot.high)
    spread = rng.uniform(0, NOISE) * (high - low)
    kept = rng.uniform(0.8, 0.98)
    error = rng.standard_normal(len(low))
    acted = True
    while acted:
        acted = False
        for action in task.script(world, "expert"):
            acted = True
            yield np.clip(action + spread * error, low, high)
            error = kept * error + np.sqrt(1 - kept**2) * rng.standard_normal(len(low))
