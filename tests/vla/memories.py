"""Random episodes of a memory, reading them step by step, and learning from them."""

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


def loss_of_a_cue(memory: StateMemory) -> float:
    """Train a memory to tell at the last of six decisions which of two cues the first one showed;
    return the cross-entropy in the end.
    """
    memory.train()
    width = memory.width
    head = torch.nn.Linear(memory.vector_size, 2)
    torch.nn.init.zeros_(head.weight)
    weights = [*memory.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    batch, length, losses = 32, 6, []
    now, mask = 8.0 * torch.arange(length).expand(batch, -1), torch.ones(batch, length)
    rows, last = torch.arange(batch), torch.full((batch,), length - 1)
    for _ in range(120):
        cue = torch.randint(2, (batch,), generator=generator)
        x = 0.1 * torch.randn(batch, length, memory.tokens, width, generator=generator)
        x[:, 0, 0, 0] += 4.0 * cue - 2.0
        vector = memory.read_episodes(x, now, mask, rows, last).vector
        loss = torch.nn.functional.cross_entropy(head(vector), cue)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20
