"""The vision towers of Qwen3-VL and Qwen2.5-VL, for pictures of one size in a batch.

transformers lays the patches of many pictures in one row; here shapes are fixed and what depends on
them alone is worked out once, so that it exports. Attention in windows is full attention under a
mask: at the sizes of a robot's pictures that costs little.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Sight(nn.Module):
    """What a tower needs besides its weights, which stay where they are."""

    def __init__(self, tower: Any, tokens: int) -> None:
        """Work it out.

        Args:
            tower: Of transformers.
            tokens: Vision tokens along a side of a picture.
        """
        super().__init__()
        self.merge = int(tower.spatial_merge_size)
        tower.blocks.driven = True  # their parts are called here, not they
        side = tokens * self.merge
        order = self.blocks(torch.arange(side**2).view(1, 1, side, side).float())[0, :, 0].long()
        row, column = order // side, order % side
        freq = tower.rotary_pos_emb.inv_freq.float()
        angle = torch.cat([row[:, None] * freq, column[:, None] * freq], 1)
        angle = torch.cat([angle, angle], 1)
        self._keep("cos", angle.cos())
        self._keep("sin", angle.sin())
        self.everywhere: tuple[int, ...] | None = None
        self._keep("near", None)
        self._keep("spread", None)
        if hasattr(tower, "fullatt_block_indexes"):
            self.everywhere = tuple(tower.fullatt_block_indexes)
            size = tower.window_size // tower.patch_size
            window = row // size * side + column // size
            self._keep("near", window[:, None] == window)
        else:
            had = int(tower.num_grid_per_side)
            at = torch.linspace(0, had - 1, side)[:, None]
            share = (1 - (at - torch.arange(had)).abs()).clamp(min=0)  # [side, had]
            self._keep("spread", torch.kron(share, share)[order].contiguous())

    def forward(self, tower: Any, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return vision tokens [b, n, d], and what is added to them in the first language layers.

        Args:
            tower: The one it was made for.
            pixels: [b, 3, s, s].
        """
        proj = tower.patch_embed.proj  # of two frames of a film; a picture is shown twice
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
        """Return maps [b, c, h, w] as tokens [b, n, c], those that will be one side by side."""
        m = self.merge
        cells = maps.unflatten(3, (-1, m)).unflatten(2, (-1, m))  # [b, c, h, m, w, m]
        return cells.permute(0, 2, 4, 3, 5, 1).flatten(1, 4)

    def _keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, value, persistent=False)


def _block(block: Any, x: Tensor, cos: Tensor, sin: Tensor, near: Tensor | None) -> Tensor:
    """One block of a tower, on [b, n, d]; `near` bool [n, n] says what sees what."""
    attn = block.attn
    parts = attn.qkv(block.norm1(x)).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = ((part.float() * cos + _half_turned(part.float()) * sin).to(x.dtype)
            for part in parts[:2])  # fmt: skip
    seen = nn.functional.scaled_dot_product_attention(q, k, parts[2], attn_mask=near)
    x = x + attn.proj(seen.transpose(1, 2).flatten(2))
    return x + block.mlp(block.norm2(x))


def _half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)
