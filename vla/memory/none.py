"""No memory: the control with the bank's interface; it stores and retrieves nothing."""

from dataclasses import dataclass

from torch import Tensor

from vla.contracts.config import PluginConfig
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """The control has no settings."""

    @property
    def window_decisions(self) -> int:
        """Decisions after which it holds nothing of one."""
        return 0

    def build(self, tokens: int, width: int) -> "NoMemory":
        """Return an empty memory; its vector is as wide as the bank's, for equal networks."""
        return NoMemory(tokens, width)


class NoMemory(StateMemory):
    """Returns the present tokens and a zero vector; its state has no tensor."""

    remembers = False
    """Decisions are independent."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return no shape."""
        return {}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Return x f32 [b, n, d] itself and zeros."""
        return Retrieved(tokens=x, vector=x.new_zeros(len(x), self.vector_size))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Return the empty state."""
        return state
