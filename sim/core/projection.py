"""Where points of the world are in the images of the cameras."""

import mujoco
import numpy as np

from vla.contracts.referents import HIDDEN


def project(
    model: mujoco.MjModel, data: mujoco.MjData, camera: str, points_m: np.ndarray
) -> np.ndarray:
    """Return image coordinates of points, shape (..., 2): -1 left or top, 1 right or bottom.

    What is outside the image, behind the camera or NaN is at `HIDDEN`; what is hidden behind other
    things is where it would be seen.

    Args:
        model: Compiled model.
        data: Its state, with up-to-date poses.
        camera: Name of a camera with square images.
        points_m: Points in the world frame, metres, shape (..., 3).
    """
    index = model.camera(camera).id
    axes = data.cam_xmat[index].reshape(3, 3)
    # Cameras look along -z with y up.
    right, up, back = np.moveaxis((points_m - data.cam_xpos[index]) @ axes, -1, 0)
    depth = np.maximum(-back, 1e-6)
    focal = 1.0 / np.tan(np.deg2rad(model.cam_fovy[index]) / 2)
    image = np.stack([focal * right / depth, -focal * up / depth], -1)
    inside = (back < 0.0) & (np.abs(image).max(-1) < 1.0)
    return np.where(inside[..., None], image, HIDDEN)
