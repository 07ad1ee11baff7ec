"""Pictures brought to one size."""

import numpy as np


def shrink(pictures, px):
    """Return pictures u8 [..., h, w, 3] as [..., px, px, 3]: areas are averaged, or repeated."""
    pictures = np.asarray(pictures)
    for axis in (-3, -2):
        size = pictures.shape[axis]
        if size == px:
            continue
        starts = np.arange(px) * size // px
        if size < px:
            pictures = np.take(pictures, starts, axis)
            continue
        counts = np.diff(np.append(starts, size))
        sums = np.add.reduceat(pictures.astype(np.float32), starts, axis)
        pictures = sums / counts.reshape((-1, 1, 1) if axis == -3 else (-1, 1))
    return pictures if pictures.dtype == np.uint8 else np.rint(pictures).astype(np.uint8)
