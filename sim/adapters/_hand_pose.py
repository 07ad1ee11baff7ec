"""The pose of a hand as seven numbers: position, rotation from pointing down, and opening."""

import numpy as np


def hand(position, quaternion, opening):
    """Return the pose, f32 [7].

    The rotation vector of the orientation itself would jump at half a turn, which is a hand that
    points down.

    Args:
        position: Of the hand in metres, [3].
        quaternion: Its orientation, xyzw; (1, 0, 0, 0) points down.
        opening: 1 wide open, 0 closed.
    """
    x, y, z, w = quaternion
    # Times the conjugate of half a turn about x: the rotation from pointing down.
    turn, axis = x, np.array([-w, -z, y])
    if turn < 0:
        turn, axis = -turn, -axis
    length = np.linalg.norm(axis)
    vector = axis * (2.0 * np.arctan2(length, turn) / max(length, 1e-9))
    return np.concatenate([position, vector, [opening]]).astype(np.float32)
