"""Labels that a success gives in hindsight: where the arm went. They need no simulator.

The pose in which a hand closed tells where the object was, and the last pose tells where it went.
Such keyframes are found as by James and Davison (2022, "Q-attention"): where the gripper reverses,
and the end.
"""

import numpy as np
from jaxtyping import Float32

from training.rl.experience.episode import Episode
from vla.contracts.specs import RobotSpec

PARTS = ("now", "next_keyframe", "end")
"""The poses of a label, in this order."""


def names(robot: RobotSpec) -> tuple[str, ...]:
    """Return what each number of a label is."""
    return tuple(f"{part}/{channel}" for part in PARTS for channel in robot.names)


def keyframe_labels(episode: Episode, robot: RobotSpec) -> Float32[np.ndarray, "t l"]:
    """Return the measured channel positions now, at the next keyframe, and at the end, for every
    decision of an episode that succeeded.
    """
    pose = episode.proprio[episode.boundary_index]
    gripper = robot.names.index(robot.gripper.channel)
    middle = 0.5 * (robot.gripper.open + robot.gripper.closed)
    wanted = episode.actions[np.arange(len(episode)), episode.executed - 1, gripper] > middle
    reversals = 1 + np.flatnonzero(wanted[1:] != wanted[:-1])
    keyframes = np.append(reversals, len(episode))
    ahead = keyframes[np.searchsorted(keyframes, np.arange(len(episode)), side="left")]
    end = np.broadcast_to(pose[-1:], (len(episode), pose.shape[1]))
    return np.concatenate([pose[:-1], pose[ahead], end], 1)
