"""Columns of a data set that say where in the images the things are that an instruction names.

They are labels for training, from a simulator, a detector or a person; a policy never sees them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vla.contracts.specs import RobotSpec

KINDS = ("object", "place")
"""What an instruction refers to: the thing to act on, and the place where it has to go, or the
thing beside which that is."""
HIDDEN = 2.0
"""Coordinate of what is outside the image, beyond all that is inside."""


def column(kind: str, camera: str, axis: str) -> str:
    """Return the name of the column with a coordinate of a referent in a camera's image.

    Coordinates are -1 at the left or top edge of the image and 1 at the right or bottom edge.

    Args:
        kind: One of `KINDS`.
        camera: Name of the camera.
        axis: "x" or "y".
    """
    return f"referent.{kind}.{camera}.{axis}"


def columns(cameras: Iterable[str]) -> list[str]:
    """Return the names of all columns, in the order of an array (cameras, kinds, x and y)."""
    return [column(kind, camera, axis) for camera in cameras for kind in KINDS for axis in "xy"]


def by_column(robot: RobotSpec, labels: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the labels of all steps, arrays (cameras, kinds, x and y) made flat, by column; none
    for a task that names no places.
    """
    names = columns(camera.name for camera in robot.cameras)
    return dict(zip(names, np.stack(labels, 1), strict=True)) if labels else {}


def read(
    scalars: Mapping[str, np.ndarray], rows: np.ndarray, cameras: Sequence[str]
) -> np.ndarray | None:
    """Return the referents f32 [..., v, r, 2] at rows i64 [...] of columns by name; None if a
    column is missing.
    """
    names = columns(cameras)
    if not scalars.keys() >= set(names):
        return None
    values = np.stack([scalars[name][rows] for name in names], -1)
    return values.reshape(*rows.shape, len(cameras), len(KINDS), 2).astype(np.float32)
