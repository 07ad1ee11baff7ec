"""Reset by retracing: an arm goes back along its path, slowly, and then home.

After FastRLAP (Stachowicz et al. 2023), whose robot resets itself between attempts: the path is
known to be free, and an object in the gripper returns to its place. This module does not import
ROS.
"""

import numpy as np


def retrace(path: np.ndarray, home: np.ndarray, stride: np.ndarray) -> np.ndarray:
    """Return targets f64 [k, u], one per control step, from the end of a path; the last is home.

    Args:
        path: Measured poses f64 [n, u], oldest first; the arm is at the last one.
        home: Home pose f64 [u].
        stride: Largest motion of each joint per control step, f64 [u].
    """
    points = np.concatenate([path[::-1], home[None]])
    steps = np.abs(np.diff(points, axis=0) / stride).max(1)  # 0 where the arm stood still
    at = np.append(0.0, np.cumsum(steps))
    count = max(1, int(np.ceil(at[-1] - 1e-9)))
    due = at[-1] * np.arange(1, count + 1) / count
    return np.stack([np.interp(due, at, joint) for joint in points.T], axis=1)
