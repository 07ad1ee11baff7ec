"""From-scratch vision-language backbone for two CPU cores: convolutions, FiLM and keypoints.

Instruction and memory modulate vision early, and keypoints summarise it: at this scale that learns
in minutes what a patch transformer does not learn in an hour. The stored tokens do not depend on
the retrieved ones, so an episode is encoded in one pass.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vla.contracts.config import validate_max, validate_min
from vla.contracts.referents import KINDS
from vla.nn.backbone import BackboneConfig
from vla.nn.context import Context, Encoded, Retrieved
from vla.nn.text import MeanEmbedding, TextTransformer
from vla.nn.vision import (
    FilmConv,
    MaxGrid,
    QueryAttention,
    ResidualConv,
    WindowedKeypoints,
    grid,
    peak,
    spatial_softmax,
    waves,
)

PERCEPTUAL = 16
"""Perceptual tokens per decision: a 4 x 4 grid."""
VISION = ("stem", "look", "perceive", "place", "view", "temperature", "trunk", "conv", "norm")
"""Parts that are independent of instruction, memory and proprioception."""
OCTAVES = 4
"""Octaves of waves of the places that the first queries find; the last has a period of 12 pixels
in images of 96."""
MAX_SIDE_PX = 2048
"""Largest side of images: memory grows with its square, and anybody may write a description."""


@dataclass(frozen=True, kw_only=True)
class Config(BackboneConfig):
    """Settings of the tiny backbone."""

    image_px: int = 96
    """Side of its square images; cameras of other sizes are resized."""
    channels: int = 32
    """Channels of the feature maps."""
    blocks: int = 2
    """FiLM convolutions per view."""
    token_width: int = 64
    """Width of the tokens that memory stores."""
    pooled_width: int = 256
    """Width of the vector that conditions the action head."""
    text_width: int = 32
    """Width of the token embedding."""
    text_encoder: Literal["mean", "transformer"] = "mean"
    """Instruction to vector: the mean of its words, or a small transformer, which sees their order
    and needs more instructions to learn from."""
    softmax_inverse_temperature: float = 5.0
    """Initial inverse temperature of the keypoints' softmax: at 1 they all start at the centre."""
    selected: int = 8
    """Keypoints selected by instruction and memory: selection is one product, not a network."""
    queries: int = 0
    """Queries, made from instruction and memory, that attend to places of the feature maps; 0 for
    none. They find the one thing among several that an instruction names. The first two, which
    `grounding_loss` trains, also give keypoints of the surroundings of what they find."""
    frozen: bool = False
    """Freeze the initial weights of the layers before instruction and memory enter."""

    def __post_init__(self) -> None:
        validate_min(self, image_px=8, blocks=0, queries=0)
        validate_max(self, image_px=MAX_SIDE_PX)

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "TinyBackbone":
        """Return a backbone; see `BackboneConfig`."""
        return TinyBackbone(self, views, proprio, vocabulary, memory)


class TinyBackbone(nn.Module):
    """Convolutional backbone with FiLM and keypoints."""

    def __init__(
        self, config: Config, views: int, proprio: int, vocabulary: int, memory: int
    ) -> None:
        super().__init__()
        self.config, self.views = config, views
        c, d = config.channels, config.token_width
        side = config.image_px // 4
        kind = MeanEmbedding if config.text_encoder == "mean" else TextTransformer
        self.words = kind(vocabulary, config.text_width)
        self.stem = nn.Sequential(nn.Conv2d(3, c, 6, stride=4, padding=1), nn.ReLU())
        self.look = nn.Sequential(nn.Conv2d(c, c, 3, stride=2, padding=1), nn.ReLU(), MaxGrid(4))
        self.perceive = nn.Linear(c * views, d)
        self.place = nn.Parameter(torch.randn(PERCEPTUAL, d) * 0.5)
        self.think = nn.Linear(c * views + proprio + config.text_width, d)
        condition = memory + config.text_width
        self.blocks = nn.ModuleList(FilmConv(c, condition) for _ in range(config.blocks))
        self.view = nn.Embedding(views, c)
        self.temperature = nn.Parameter(torch.full((c, 1), config.softmax_inverse_temperature))
        self.select = nn.Linear(condition, config.selected * c * views)
        self.register_buffer("coordinates", grid(side, side), persistent=False)
        self.windows = min(config.queries, len(KINDS))
        of_windows = self.windows * (3 * c + 4 * OCTAVES)
        seen = 3 * (c * views + config.selected + views * config.queries) + views * of_windows
        self.trunk = self.attend = self.near = None
        if config.queries:
            # Without this depth, queries rarely find a place beside a thing.
            self.trunk = nn.Sequential(
                nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), ResidualConv(c), ResidualConv(c, 2)
            )
            self.attend = QueryAttention(c, condition, config.queries, views)
            self.near = WindowedKeypoints(views)
        width = config.pooled_width
        self.pool = nn.Sequential(
            nn.Linear(seen + proprio + condition, width), nn.ReLU(), nn.Linear(width, width)
        )
        if config.frozen:
            self.stem.requires_grad_(requires_grad=False)
            self.look.requires_grad_(requires_grad=False)

    @property
    def frozen(self) -> bool:
        """Whether the weights of `frozen_features` are frozen."""
        return self.config.frozen

    @property
    def num_queries(self) -> int:
        """See `vla.nn.context.HasAttention`."""
        return self.config.queries

    @property
    def token_shape(self) -> tuple[int, int]:
        """Tokens per decision and their width."""
        return PERCEPTUAL + 1, self.config.token_width

    def sizes(self, memory: int) -> tuple[int, int, int]:
        """Widths of `Context`: pooled, token, memory."""
        return self.config.pooled_width, self.config.token_width, memory

    def vision(self) -> dict[str, Tensor]:
        """Return the weights of vision that no instruction or memory enters, by name."""
        return {
            name: weight
            for name, weight in self.state_dict(keep_vars=True).items()
            if not name.startswith("words.") and not set(VISION).isdisjoint(name.split("."))
        }

    def encode(self, images: Tensor, proprio: Tensor, token_ids: Tensor) -> Encoded:
        """Encode observations without memory.

        Args:
            images: u8 [b, v, h, w, 3].
            proprio: f32 [b, s], normalised.
            token_ids: i64 [b, w], 0 pads.
        """
        return self.encode_from(self.frozen_features(images, token_ids), proprio, token_ids)

    def frozen_features(self, images: Tensor, token_ids: Tensor) -> dict[str, Tensor]:
        """Return feature maps f32 [b, v, c, h, w] and the largest of each cell [b, v, c, 16]."""
        side = self.config.image_px
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        if flat.shape[2:] != (side, side):
            flat = nn.functional.interpolate(flat, (side, side), mode="bilinear", antialias=True)
        maps = self.stem(flat)
        cells = self.look(maps).flatten(2).unflatten(0, (-1, self.views))
        return {"maps": maps.unflatten(0, (-1, self.views)), "cells": cells}

    def encode_from(
        self, features: dict[str, Tensor], proprio: Tensor, token_ids: Tensor
    ) -> Encoded:
        """Encode observations without memory, from frozen features."""
        text = self.words(token_ids)
        cells = features["cells"].flatten(1, 2).transpose(1, 2)
        cognitive = self.think(torch.cat([cells.amax(1), proprio, text], 1))
        tokens = torch.cat([self.perceive(cells) + self.place, cognitive[:, None]], 1)
        return Encoded(tokens, (features["maps"], proprio, text))

    def refine(self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved) -> Context:
        """Modulate vision by instruction and memory, and pool it."""
        return self.refine_with_attention(cache, retrieved)[0]

    def refine_with_attention(
        self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved
    ) -> tuple[Context, Tensor | None]:
        """Return the result of `refine`, and where the queries look: logits over the cells of a
        square grid, f32 [b, v, queries, cells]; None without queries.
        """
        inputs, logits = self._attend(cache, retrieved)
        return Context(self.pool(inputs), retrieved.tokens, retrieved.vector), logits

    def pool_inputs(self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved) -> Tensor:
        """Return keypoints, proprioception, memory and instruction, which `pool` maps to
        `Context.pooled`: f32 [b, d].
        """
        return self._attend(cache, retrieved)[0]

    def _attend(
        self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved
    ) -> tuple[Tensor, Tensor | None]:
        maps, proprio, text = cache
        if self.trunk is not None:
            maps = self.trunk(maps.flatten(0, 1)).unflatten(0, (-1, self.views))
        condition = torch.cat([retrieved.vector, text], 1)
        wide = condition[:, None].expand(-1, self.views, -1).flatten(0, 1)
        x = (maps + self.view.weight[:, :, None, None]).flatten(0, 1)
        for block in self.blocks:
            x = block(x, wide)
        points = spatial_softmax(x, self.coordinates, self.temperature)
        points = points.unflatten(0, (-1, self.views)).flatten(1, 2)  # [b, v * c, 3]
        choice = self.select(condition).unflatten(1, (self.config.selected, -1)).softmax(2)
        seen = [(choice @ points).flatten(1), points.flatten(1), proprio, condition]
        if self.attend is None or self.near is None:
            return torch.cat(seen, 1), None
        logits = self.attend(maps, condition)
        place = peak(logits, self.coordinates)
        found = torch.cat([place, logits.amax(3, keepdim=True)], 3)
        centre = place[:, :, : self.windows]
        by_view = x.unflatten(0, (-1, self.views))
        near = self.near(by_view, centre, self.coordinates, self.temperature)
        parts = (found, waves(centre, OCTAVES), near)
        return torch.cat([*(part.flatten(1) for part in parts), *seen], 1), logits
