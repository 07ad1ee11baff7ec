"""Base of memories: initial state, and reading whole episodes by stepping through them."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from vla.nn.context import Retrieved


class StateMemory(nn.Module):
    """Base of the memories; see `vla.contracts.protocols.Memory` for the contract.

    Args:
        tokens: n, tokens of a decision.
        width: d, numbers of a token.
    """

    remembers = True
    """Whether a decision depends on earlier observations."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.width = tokens, width

    @property
    def vector_size(self) -> int:
        """Width of `Retrieved.vector`: equal for all memories, so that networks have equal size."""
        return 2 * self.width

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one row of each tensor of the state, by name."""

    @abstractmethod
    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before they are written."""

    @abstractmethod
    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Return the state after tokens x f32 [b, n, d] are stored where mask f32 [b] is 1."""

    def initial(self, batch: int, device: torch.device) -> dict[str, Tensor]:
        """Return the state of `batch` rows at the start of an episode: zeros."""
        return {
            name: torch.zeros(batch, *shape, device=device)
            for name, shape in self.state_shapes().items()
        }

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """Read at chosen decisions of whole episodes, with full gradient through every write.

        All reads are one call, so that a standardisation layer gets them as one batch.

        Args:
            x: f32 [b, t, n, d], tokens of every decision.
            now: f32 [b, t], control steps since the episode began.
            mask: f32 [b, t], 1 where the decision exists.
            row: i64 [m], episode of each read.
            decision: i64 [m], its decision within the episode.
        """
        states = [self.initial(len(x), x.device)]
        for t in range(x.shape[1] - 1):
            states.append(self.write(states[-1], x[:, t], now[:, t], mask[:, t]))
        read = {
            name: torch.stack([state[name] for state in states], 1)[row, decision]
            for name in states[0]
        }
        return self.read(read, x[row, decision], now[row, decision])


def memoryless_gate(width: int) -> nn.Linear:
    """Return a gate for `gate_mix` of tokens of `width` numbers that starts 95 % memoryless."""
    gate = nn.Linear(2 * width, width)
    nn.init.zeros_(gate.weight)
    nn.init.constant_(gate.bias, 3.0)
    return gate


def gate_mix(gate: nn.Module, x: Tensor, recalled: Tensor) -> Tensor:
    """Mix what was recalled into present tokens, both f32 [b, n, d], by a gate of both."""
    share = torch.sigmoid(gate(torch.cat([x, recalled], 2)))
    return share * x + (1 - share) * recalled
