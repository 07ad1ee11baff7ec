"""From the hidden states of a pretrained network to tokens for memory and a vector for the head."""

import numpy as np
import torch
from torch import Tensor, nn

SQUEEZE = 16
"""Channels per unit of the squeeze-excite gate."""


def resized(images: Tensor, side: int) -> Tensor:
    """Return images f32 [b, c, side, side], interpolated bilinearly and anti-aliased.

    Two products with constant matrices: an exporter has no operator for it.
    """
    height, width = images.shape[2:]
    if height != side:
        images = torch.from_numpy(weights(height, side)).to(images) @ images
    if width != side:
        images = images @ torch.from_numpy(weights(width, side)).to(images).T
    return images


def weights(old_side: int, side: int) -> np.ndarray:
    """Return f32 [side, old_side]: shares of old cells in new ones, triangles around them."""
    scale = old_side / side
    middle = (np.arange(side)[:, None] + 0.5) * scale
    far = np.abs(np.arange(old_side)[None] + 0.5 - middle) / max(scale, 1.0)
    share = np.maximum(0.0, 1.0 - far)
    return (share / share.sum(1, keepdims=True)).astype(np.float32)


def means(old_side: int, side: int) -> Tensor:
    """Return f32 [side ** 2, old_side ** 2]: means over the cells of a square grid for a coarser
    grid, or the nearest cells for a finer one.
    """
    eye = torch.eye(old_side**2).view(old_side**2, 1, old_side, old_side)
    return nn.functional.adaptive_avg_pool2d(eye, side).flatten(1).T.contiguous()


class Squeeze(nn.Module):
    """Vision tokens of all views to few narrow ones, through a squeeze-excite bottleneck.

    Hu et al. 2018 (arXiv 1709.01507); as a bottleneck for memory: MemoryVLA (arXiv 2508.19236).
    """

    def __init__(self, width: int, side: int, views: int, cells: int, neck: int, out: int) -> None:
        """Build the layers for `views` cameras.

        `width` and `out` are the widths of a token before and after, `side` and `cells` the tokens
        along a side of an image, `neck` the channels of the bottleneck.
        """
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.narrow = nn.Linear(width, neck)
        few = max(neck // SQUEEZE, 4)
        self.gate = nn.Sequential(nn.Linear(neck, few), nn.ReLU(), nn.Linear(few, neck))
        self.widen = nn.Linear(neck * views, out)
        self.place = nn.Parameter(torch.randn(cells**2, out) * 0.5)
        self.register_buffer("means", means(side, cells), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return f32 [b, cells ** 2, out] for tokens f32 [b, v, side ** 2, width]."""
        x = nn.functional.gelu(self.narrow(self.norm(tokens)))
        x = x * self.gate(x.mean(2, keepdim=True)).sigmoid()
        x = self.means @ x  # [b, v, cells ** 2, neck]
        return self.widen(x.transpose(1, 2).flatten(2)) + self.place


class Pool(nn.Module):
    """Pools tokens, proprioception and the retrieved vector into one vector."""

    def __init__(
        self, tokens: int, width: int, proprio: int, memory: int, selected: int, pooled: int
    ) -> None:
        super().__init__()
        self.selected = selected
        condition = width + proprio + memory
        self.select = nn.Linear(condition, selected * width)
        self.mix = nn.Sequential(
            nn.Linear((tokens + selected) * width + condition, pooled), nn.ReLU(),
            nn.Linear(pooled, pooled),
        )  # fmt: skip

    def forward(self, tokens: Tensor, thought: Tensor, proprio: Tensor, vector: Tensor) -> Tensor:
        """Return f32 [b, pooled].

        Args:
            tokens: f32 [b, n, width], perceptual.
            thought: f32 [b, width], cognitive.
            proprio: f32 [b, s].
            vector: f32 [b, m], retrieved.
        """
        condition = torch.cat([thought, proprio, vector], 1)
        asked = self.select(condition).unflatten(1, (self.selected, -1))
        share = (asked @ tokens.transpose(1, 2) / tokens.shape[2] ** 0.5).softmax(2)
        seen = torch.cat([(share @ tokens).flatten(1), tokens.flatten(1)], 1)
        return self.mix(torch.cat([seen, condition], 1))
