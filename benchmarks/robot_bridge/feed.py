"""Messages of the synthetic arm in the recorder studies: message n and its number; no ROS."""

import numpy as np


def positions(count: int, joints: int) -> list[float]:
    """Return the joints of message n: n thousandths, each joint one thousand further."""
    return [0.001 * count + joint for joint in range(joints)]


def count(first: float) -> int:
    """Return the number of the message with this first joint."""
    return round(1000.0 * first)


def picture(count: int, height_px: int, width_px: int) -> np.ndarray:
    """Return RGB u8 [h, w, 3] of one colour that identifies the message."""
    colour = np.array([count % 256, (count // 256) % 256, 90], np.uint8)
    return np.broadcast_to(colour, (height_px, width_px, 3))


def task(number: int) -> str:
    """Return the instruction of an episode."""
    return f"do {number}"


def source(number: int) -> str:
    """Return the operator of an episode."""
    return "teleop" if number % 2 else "policy"
