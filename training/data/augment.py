"""Image augmentation: random shift and brightness, the same for all images of an episode."""

import cv2
import numpy as np
import torch
from torch import Tensor


def shift_and_brighten(
    images: np.ndarray | Tensor, episode: np.ndarray, *, shift_px: int, brightness: float,
    rng: np.random.Generator, first: int = 0, count: int = 0,
) -> tuple[np.ndarray | Tensor, np.ndarray]:  # fmt: skip
    """Return images with one random shift and brightness per view and episode, and how far each
    view of each episode was moved to the right and down, in pixels, f32 [episodes, v, 2].

    Args:
        images: u8 [n, v, h, w, 3]; a tensor is changed on its device.
        episode: i64 [n], episode of each.
        shift_px: Largest shift along either axis; the border is replicated.
        brightness: Largest relative change of brightness.
        rng: Source of randomness.
        first: Index of episode 0 in a larger batch, for all of which numbers are drawn.
        count: Episodes of the larger batch; 0 if `images` is the whole batch.
    """
    episodes, views = int(episode.max(initial=-1)) + 1, images.shape[1]
    shift = np.zeros((count or episodes, views, 2), np.int64)  # down and right
    factor = np.ones((count or episodes, views))
    for place in np.ndindex(factor.shape):
        shift[place] = rng.integers(-shift_px, shift_px + 1, size=2)
        factor[place] = 1.0 + rng.uniform(-brightness, brightness)
    shift, factor = shift[first : first + episodes], factor[first : first + episodes]
    change = _change_tensor if isinstance(images, Tensor) else _change_array
    moved = np.where(np.isin(np.arange(episodes), episode)[:, None, None], -shift[..., ::-1], 0)
    return change(images, shift[episode], factor[episode]), moved.astype(np.float32)


def _change_array(images: np.ndarray, shift: np.ndarray, factor: np.ndarray) -> np.ndarray:
    out, size = np.empty_like(images), (images.shape[3], images.shape[2])
    for place in np.ndindex(factor.shape):
        dy, dx = shift[place]
        table = np.clip(np.arange(256) * factor[place], 0, 255).astype(np.uint8)
        move = np.array([[1.0, 0.0, -dx], [0.0, 1.0, -dy]])
        cv2.warpAffine(
            cv2.LUT(images[place], table), move, size, dst=out[place],
            flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
    return out


def _change_tensor(images: Tensor, shift: np.ndarray, factor: np.ndarray) -> Tensor:
    height, width = images.shape[2:4]

    def on_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(images.device)

    down, right = on_device(shift).unbind(2)
    rows = (torch.arange(height, device=images.device) + down[..., None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + right[..., None]).clamp(0, width - 1)
    image = torch.arange(images.shape[0], device=images.device)[:, None, None, None]
    view = torch.arange(images.shape[1], device=images.device)[:, None, None]
    moved = images[image, view, rows[..., None], columns[:, :, None]]
    bright = moved * on_device(factor.astype(np.float32))[:, :, None, None, None]
    return bright.clamp(0, 255).to(torch.uint8)
