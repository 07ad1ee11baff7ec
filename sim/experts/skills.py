"""What experts do with things: pick, carry, place, push; made of motions, for tasks' scripts."""

from collections.abc import Iterator

import numpy as np

from sim.core import layout
from sim.experts.motions import Motion, grasp_yaw

CLEARANCE_M = 0.05
"""Height above a thing at which the open hand comes over it."""
OVER_M = 0.09
"""Height of the tool at which the hand passes over things."""
ATTEMPTS = 4
"""Attempts of an expert at what can fail; most episodes need one."""
HELD_M = 0.015
"""Distance from the tool up to which a grasp on the table holds."""
LIFTED_M = 0.045
"""Height of a thing's centre that is off the table."""
LOST_M = 0.04
"""Distance from the tool at which a thing that was held is lost."""


def pick(
    motion: Motion, body: str, *, lift_m: float, clearance_m: float = CLEARANCE_M
) -> Iterator[np.ndarray]:
    """Yield actions that take a thing at its centre from above, unless it is in the hand, and lift
    it by `lift_m`; the open hand comes over it `clearance_m` above its centre.
    """
    pos = layout.block_pos_m(motion.world, body)
    if not is_held(motion, body, pos):
        if motion.world.as_batch.touching(body)[0]:  # beside it: away from it before another try
            yield from motion.grip(motion.wide)
        motion.opening = motion.wide
        pos = layout.block_pos_m(motion.world, body)
        yaw = grasp_yaw(pos, layout.block_yaw_rad(motion.world, body))
        yield from motion.move(pos, yaw, clearance_m=clearance_m)
    yield from motion.grip(motion.world.robot.gripper.closed)
    yield from motion.move(pos + (0.0, 0.0, lift_m), tolerance_m=0.015)


def carry(motion: Motion, goal_m: np.ndarray, *, height_m: float) -> Iterator[np.ndarray]:
    """Yield actions that carry what is held to `height_m` above a place on the table."""
    yield from motion.move(goal_m + (0.0, 0.0, height_m), tolerance_m=0.012)


def place(
    motion: Motion, goal_m: np.ndarray, *, half_m: float, up_m: float
) -> Iterator[np.ndarray]:
    """Yield actions that set what is held down, its centre `half_m` above a place on the table, let
    go, and rise to `up_m` above that.
    """
    yield from motion.move(goal_m + (0.0, 0.0, half_m + 0.003))
    yield from motion.grip(motion.wide)
    yield from motion.move(goal_m + (0.0, 0.0, half_m + up_m), tolerance_m=0.015)
    yield from motion.wait(2)


def put(
    motion: Motion, body: str, goal_m: np.ndarray, *, half_m: float, lift_m: float,
    clearance_m: float = CLEARANCE_M,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield actions that put a thing on a place on the table, or end early if the thing is lost.

    What they do depends on the present state alone: who begins with the thing in the hand goes on
    as one who has taken it.
    """
    if is_held(motion, body, layout.block_pos_m(motion.world, body)):
        yield from motion.grip(motion.world.robot.gripper.closed)
    else:
        yield from pick(motion, body, lift_m=lift_m, clearance_m=clearance_m)
    pos = layout.block_pos_m(motion.world, body)
    if np.linalg.norm((goal_m - pos)[:2]) > 0.015:
        if pos[2] < half_m + 0.6 * lift_m:
            up = pos * (1, 1, 0) + (0.0, 0.0, half_m + lift_m)
            yield from _while_held(motion, body, motion.move(up, tolerance_m=0.015))
        yield from _while_held(motion, body, carry(motion, goal_m, height_m=half_m + lift_m))
    if not is_lost(motion, body):
        yield from place(motion, goal_m, half_m=half_m, up_m=lift_m)


def is_held(motion: Motion, geom: str, pos_m: np.ndarray) -> bool:
    """Return whether two bodies of the arm touch a thing at `pos_m` that is between the fingertips,
    or above the table.
    """
    near = pos_m[2] > LIFTED_M or np.linalg.norm(motion.tool_m - pos_m) < HELD_M
    return bool(near and motion.world.as_batch.touching(geom)[0] >= 2)


def is_lost(motion: Motion, body: str) -> bool:
    """Return whether a thing is too far from the tool to be held."""
    away = motion.tool_m - layout.block_pos_m(motion.world, body)
    return float(np.linalg.norm(away)) > LOST_M


def _while_held(motion: Motion, body: str, actions: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    for action in actions:
        if is_lost(motion, body):
            return
        yield action


def rise(motion: Motion) -> Iterator[np.ndarray]:
    """Yield actions that lift a low hand, so that it sweeps nothing aside on its way."""
    low = max(OVER_M - motion.tool_m[2], 0.0)
    yield from motion.move(motion.tool_m + (0.0, 0.0, low), tolerance_m=0.015, max_steps=8)


def push(
    motion: Motion, body: str, goal_m: np.ndarray, *, half_m: float, behind_m: float,
    stride_m: float,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield actions that push a thing over the table until its centre is at `goal_m`, shape (2,).

    Args:
        motion: Makes the actions.
        body: The thing.
        goal_m: Where it has to go.
        half_m: Height of the tool while it pushes.
        behind_m: Distance from the thing at which the hand comes down behind it.
        stride_m: Largest step ahead of the tool.
    """
    motion.opening = motion.opened(0.2)
    thing = layout.block_pos_m(motion.world, body)[:2]
    way = (goal_m - thing) / np.linalg.norm(goal_m - thing)
    # The fingers side by side, so that the thing touches both and does not turn.
    yaw = float(np.arctan2(way[1], way[0]))
    behind = np.array([*(thing - behind_m * way), half_m])
    if np.linalg.norm(motion.tool_m[:2] - behind[:2]) > 0.02:
        yield from rise(motion)
    yield from motion.move(behind, yaw, clearance_m=CLEARANCE_M, tolerance_m=0.008)
    for _ in range(40):
        thing = layout.block_pos_m(motion.world, body)[:2]
        if np.dot(goal_m - thing, way) < 0.004:
            break
        # It sticks to two rough fingers and moves as they do.
        ahead = (goal_m - thing) / np.linalg.norm(goal_m - thing)
        yield motion.toward(np.array([*(motion.tool_m[:2] + stride_m * ahead), half_m]), yaw)
