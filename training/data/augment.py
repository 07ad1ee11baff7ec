"""Makes few pictures go further: whole episodes shifted and brightened or darkened as one."""

import cv2
import numpy as np


def shaken(
    images: np.ndarray, row: np.ndarray, *, shift_px: int, gain: float, rng: np.random.Generator,
    first: int = 0, rows: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return images of which each view of each row is shifted and brightened alike over time.

    Args:
        images: u8 [n, v, h, w, 3].
        row: i64 [n], episode of each.
        shift_px: Largest shift along either side; what comes in repeats the border.
        gain: Largest change of brightness, as a share.
        rng: Source of randomness.
        first: Where row 0 lies in a larger batch, for all of which numbers are drawn.
        rows: Rows of that batch; 0 where this is all of it.
    """
    out = np.empty_like(images)
    size = images.shape[3], images.shape[2]
    for one in range(rows or int(row.max()) + 1):
        members = np.flatnonzero(row == one - first)
        for v in range(images.shape[1]):
            dy, dx = rng.integers(-shift_px, shift_px + 1, size=2)
            factor = 1.0 + rng.uniform(-gain, gain)
            table = np.clip(np.arange(256) * factor, 0, 255).astype(np.uint8)
            move = np.array([[1.0, 0.0, -dx], [0.0, 1.0, -dy]])
            for i in members:
                cv2.warpAffine(
                    cv2.LUT(images[i, v], table), move, size, dst=out[i, v],
                    flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE,
                )  # fmt: skip
    return out
