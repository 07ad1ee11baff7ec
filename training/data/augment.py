"""Image augmentation: random shift and brightness, the same for all images of an episode."""

import cv2
import numpy as np


def shift_and_brighten(
    images: np.ndarray, episode: np.ndarray, *, shift_px: int, brightness: float,
    rng: np.random.Generator, first: int = 0, count: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return images with one random shift and brightness per view and episode, and how far each
    view of each episode was moved to the right and down, in pixels, f32 [episodes, v, 2].

    Args:
        images: u8 [n, v, h, w, 3].
        episode: i64 [n], episode of each.
        shift_px: Largest shift along either axis; the border is replicated.
        brightness: Largest relative change of brightness.
        rng: Source of randomness.
        first: Index of episode 0 in a larger batch, for all of which numbers are drawn.
        count: Episodes of the larger batch; 0 if `images` is the whole batch.
    """
    out = np.empty_like(images)
    moved = np.zeros((int(episode.max(initial=-1)) + 1, images.shape[1], 2), np.float32)
    size = images.shape[3], images.shape[2]
    for index in range(count or int(episode.max()) + 1):
        members = np.flatnonzero(episode == index - first)
        for v in range(images.shape[1]):
            dy, dx = rng.integers(-shift_px, shift_px + 1, size=2)
            if len(members):
                moved[index - first, v] = -dx, -dy
            factor = 1.0 + rng.uniform(-brightness, brightness)
            table = np.clip(np.arange(256) * factor, 0, 255).astype(np.uint8)
            move = np.array([[1.0, 0.0, -dx], [0.0, 1.0, -dy]])
            for i in members:
                cv2.warpAffine(
                    cv2.LUT(images[i, v], table), move, size, dst=out[i, v],
                    flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE,
                )  # fmt: skip
    return out, moved
