"""The way back: what an arm did, backwards and slowly, and then home; no ROS here.

After FastRLAP (Stachowicz et al. 2023), whose robot puts itself back between attempts: where it
came from there was room, and what it carried goes back to where it was taken.
"""

import numpy as np


def way_back(path: np.ndarray, home: np.ndarray, stride: np.ndarray) -> np.ndarray:
    """Return targets f64 [k, u], one per control step, from where a path ends; the last is home.

    Args:
        path: Measured poses f64 [n, u], oldest first; the arm is at the last one.
        home: Where the arm begins, f64 [u].
        stride: Most that each joint moves in a control step, f64 [u].
    """
    points = np.concatenate([path[::-1], home[None]])
    steps = np.abs(np.diff(points, axis=0) / stride).max(1)  # where it stood still it takes no time
    at = np.append(0.0, np.cumsum(steps))
    count = max(1, int(np.ceil(at[-1] - 1e-9)))
    due = at[-1] * np.arange(1, count + 1) / count
    return np.stack([np.interp(due, at, joint) for joint in points.T], axis=1)
