"""The vision towers of Qwen3-VL and Qwen2.5-VL, for images of one size in a batch.

transformers concatenates the patches of many images; here shapes are fixed and everything that
depends on them alone is computed once, so that it exports. Window attention is full attention under
a mask: at the image sizes of a robot that costs little.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class QwenVision(nn.Module):
    """Buffers and forward pass of a tower, which keeps its weights."""

    def __init__(self, tower: Any, tokens: int) -> None:
        """Compute the buffers for a tower with `tokens` vision tokens along a side of an image."""
        super().__init__()
        self.merge = int(tower.spatial_merge_size)
        tower.blocks.driven = True  # only their parts are called here
        side = tokens * self.merge
        order = self.blocks(torch.arange(side**2).view(1, 1, side, side).float())[0, :, 0].long()
        row, column = order // side, order % side
        freq = tower.rotary_pos_emb.inv_freq.float()
        angle = torch.cat([row[:, None] * freq, column[:, None] * freq], 1)
        angle = torch.cat([angle, angle], 1)
        self._buffer("cos", angle.cos())
        self._buffer("sin", angle.sin())
        self.everywhere: tuple[int, ...] | None = None
        self._buffer("near", None)
        self._buffer("spread", None)
        if hasattr(tower, "fullatt_block_indexes"):
            self.everywhere = tuple(tower.fullatt_block_indexes)
            size = tower.window_size // tower.patch_size
            window = row // size * side + column // size
            self._buffer("near", window[:, None] == window)
        else:
            had = int(tower.num_grid_per_side)
            at = torch.linspace(0, had - 1, side)[:, None]
            share = (1 - (at - torch.arange(had)).abs()).clamp(min=0)  # [side, had]
            self._buffer("spread", torch.kron(share, share)[order].contiguous())

    def forward(self, tower: Any, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return vision tokens [b, n, d] of pixels [b, 3, s, s], and features added to them in the
        first language layers; `tower` is that of the constructor.
        """
        proj = tower.patch_embed.proj  # of two video frames; an image counts twice
        x = nn.functional.conv2d(pixels, proj.weight.sum(2), proj.bias, proj.stride[1:])
        x = self.blocks(x)
        if self.spread is not None:
            x = x + self.spread.to(x) @ tower.pos_embed.weight
        deep: list[Tensor] = []
        spare = tower.training and tower.gradient_checkpointing and torch.is_grad_enabled()
        for i, block in enumerate(tower.blocks):
            near = None if self.everywhere is None or i in self.everywhere else self.near
            args = (block, x, self.cos, self.sin, near)
            x = checkpoint(_block, *args, use_reentrant=False) if spare else _block(*args)
            if i in getattr(tower, "deepstack_visual_indexes", ()):
                merger = tower.deepstack_merger_list[len(deep)]
                deep.append(merger(x).unflatten(0, (len(pixels), -1)))
        return tower.merger(x).unflatten(0, (len(pixels), -1)), deep

    def blocks(self, maps: Tensor) -> Tensor:
        """Return maps [b, c, h, w] as tokens [b, n, c], tokens to be merged next to each other."""
        m = self.merge
        cells = maps.unflatten(3, (-1, m)).unflatten(2, (-1, m))  # [b, c, h, m, w, m]
        return cells.permute(0, 2, 4, 3, 5, 1).flatten(1, 4)

    def _buffer(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, value, persistent=False)


def _block(block: Any, x: Tensor, cos: Tensor, sin: Tensor, near: Tensor | None) -> Tensor:
    """Run a block of a tower on [b, n, d] with the attention mask `near`, bool [n, n]."""
    attn = block.attn
    parts = attn.qkv(block.norm1(x)).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = ((part.float() * cos + _half_turned(part.float()) * sin).to(x.dtype)
            for part in parts[:2])  # fmt: skip
    mixed = nn.functional.scaled_dot_product_attention(q, k, parts[2], attn_mask=near)
    x = x + attn.proj(mixed.transpose(1, 2).flatten(2))
    return x + block.mlp(block.norm2(x))


def _half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)
