"""Small vision modules: feature-wise modulation, spatial softmax, query keypoints."""

import math

import torch
from torch import Tensor, nn


class FilmConv(nn.Module):
    """3x3 convolution whose channels are scaled and shifted by a condition (Perez et al. 2018)."""

    def __init__(self, channels: int, condition: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.film = nn.Linear(condition, 2 * channels)
        nn.init.zeros_(self.film.bias)

    def forward(self, maps: Tensor, condition: Tensor) -> Tensor:
        """Return maps f32 [b, c, h, w] for a condition f32 [b, m]."""
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, 1)
        return maps + torch.relu(self.norm(self.conv(maps)) * (1 + scale) + shift)


class MaxGrid(nn.Module):
    """Largest value in each cell of a grid of `side` x `side` cells; in operators that export."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Return f32 [b, c, side, side] for maps f32 [b, c, h, w]."""
        height, width = maps.shape[2:]
        if height % self.side or width % self.side:
            return nn.functional.adaptive_max_pool2d(maps, self.side)
        return nn.functional.max_pool2d(maps, (height // self.side, width // self.side))


class ResidualConv(nn.Module):
    """3x3 convolution with a residual connection."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps f32 [b, c, h, w]."""
        return maps + torch.relu(self.norm(self.conv(maps)))


class QueryAttention(nn.Module):
    """Attention from queries, made of a condition, to the cells of feature maps."""

    def __init__(
        self, channels: int, condition: int, queries: int, views: int, width: int = 32
    ) -> None:
        super().__init__()
        self.key = nn.Conv2d(channels, width, 1)
        self.query = nn.Linear(condition, queries * width * views)
        self.shape = views, queries, width

    def forward(self, maps: Tensor, condition: Tensor) -> Tensor:
        """Return logits f32 [b, v, queries, h * w] for maps f32 [b, v, c, h, w] and a condition
        f32 [b, m].
        """
        width = self.shape[-1]
        key = self.key(maps.flatten(0, 1)).flatten(2).unflatten(0, (-1, self.shape[0]))
        query = self.query(condition).unflatten(1, self.shape)
        # Sharper than the usual 1 / sqrt(width): a query looks at a few cells of hundreds.
        return query @ key * (3.0 / width**0.5)


class WindowedKeypoints(nn.Module):
    """Keypoints of the surroundings of places: what a thing looks like where it was found."""

    def __init__(self, views: int, sigma: float = 0.15) -> None:
        super().__init__()
        self.log_sigma = nn.Parameter(torch.full((views, 1, 1), math.log(sigma)))

    def forward(
        self, maps: Tensor, centre: Tensor, coordinates: Tensor, temperature: Tensor
    ) -> Tensor:
        """Return f32 [b, v, p, c, 3] for maps f32 [b, v, c, h, w] and p places of each view, f32
        [b, v, p, 2]: x and y of each channel's keypoint relative to the place, in widths of the
        window, and its maximum, both under a Gaussian window around the place.

        Args:
            maps: Feature maps.
            centre: The places, in the units of `coordinates`.
            coordinates: f32 [h * w, 2], see `grid`.
            temperature: f32 [c, 1], as of `spatial_softmax`.
        """
        offset = coordinates - centre[..., None, :]  # [b, v, p, h * w, 2]
        scale = self.log_sigma.neg().exp()
        window = (offset * scale[..., None]).square().sum(-1) * -0.5
        inside = maps.flatten(3)[:, :, None] * temperature + window[:, :, :, None]
        near = inside.softmax(-1) @ coordinates - centre[..., None, :]
        return torch.cat([near * scale[..., None], inside.amax(-1, keepdim=True)], -1)


def grid(height: int, width: int) -> Tensor:
    """Return the coordinates f32 [h * w, 2] of map cells, x then y, in [-1, 1]."""
    y = torch.linspace(-1, 1, height)[:, None].expand(height, width)
    x = torch.linspace(-1, 1, width)[None].expand(height, width)
    return torch.stack([x, y], -1).reshape(-1, 2)


def peak(logits: Tensor, coordinates: Tensor) -> Tensor:
    """Return f32 [..., 2]: where logits f32 [..., h * w] over a square grid peak.

    The mean over the largest cell and its neighbours: between the cells, and far from other peaks,
    which draw the mean over all cells to a place where nothing is.
    """
    side = round(len(coordinates) ** 0.5)
    largest = coordinates[logits.argmax(-1)]
    far = (coordinates - largest[..., None, :]).abs().amax(-1) > 1.5 * 2 / max(side - 1, 1)
    return torch.where(far, -1e4, logits).softmax(-1) @ coordinates


def waves(place: Tensor, octaves: int = 4) -> Tensor:
    """Return sines and cosines f32 [..., 2 * octaves * d] of places f32 [..., d] in [-1, 1].

    From them a network learns in fewer updates what depends on small differences of a place
    (Tancik et al. 2020, arXiv 2006.10739).
    """
    phase = torch.cat([place * (math.pi * 2**k) for k in range(octaves)], -1)
    return torch.cat([phase.sin(), phase.cos()], -1)


def spatial_softmax(maps: Tensor, coordinates: Tensor, temperature: Tensor) -> Tensor:
    """Return f32 [b, c, 3]: expected x and y of each channel, and its maximum.

    Levine et al. 2016 (arXiv 1504.00702), section 5.1; the maximum says whether the thing is there.
    """
    flat = maps.flatten(2)
    place = (flat * temperature).softmax(2) @ coordinates
    return torch.cat([place, flat.amax(2, keepdim=True)], 2)
