"""Random episodes of a memory, and reading them step by step."""

import torch
from torch import Tensor

from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory


def episode(steps: int, tokens: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random tokens f32 [1, t, n, d], and the control steps of their decisions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, steps, tokens, width, generator=generator)
    return x, 8.0 * torch.arange(steps)[None]


@torch.no_grad()
def stepped(memory: StateMemory, x: Tensor, now: Tensor, mask: Tensor) -> list[Retrieved]:
    """Return what is read at every decision, step by step."""
    state, read = memory.initial(len(x), x.device), []
    for t in range(x.shape[1]):
        read.append(memory.read(state, x[:, t], now[:, t]))
        state = memory.write(state, x[:, t], now[:, t], mask[:, t])
    return read
