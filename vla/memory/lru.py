"""A state-space memory: a linear recurrent unit per token, with shared weights.

Orvieto et al. 2023 (arXiv 2303.06349): a diagonal linear recurrence with complex eigenvalues inside
the unit circle, h_t = a h_(t-1) + g B x_t with g = (1 - |a|^2)^(1/2), trained by a parallel scan.
What is not linear comes after it, in reading. Its state has a fixed size for any episode length;
eigenvalues near 1 hold long, and begin there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize
from vla.nn.scan import scan


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the state-space memory."""

    state_size: int = 64
    """Complex numbers in the state of each token."""
    min_radius: float = 0.9
    """Least absolute eigenvalue at the start."""
    max_radius: float = 0.999
    """Largest absolute eigenvalue at the start, below 1."""
    max_phase: float = 0.3
    """Largest phase of an eigenvalue at the start, rad."""

    def __post_init__(self) -> None:
        validate_min(self, state_size=1, max_phase=0)
        if not 0 < self.min_radius <= self.max_radius < 1:
            raise ValueError(
                f"memory.min_radius, max_radius: got {self.min_radius}, {self.max_radius}, "
                "expected 0 < min <= max < 1"
            )

    def build(self, tokens: int, width: int) -> "LRUMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return LRUMemory(self, tokens, width)


class LRUMemory(StateMemory):
    """Linear recurrent unit; it ignores the time between decisions."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config, size = config, config.state_size
        self.norm = nn.LayerNorm(width)
        self.input = nn.Linear(width, 2 * size, bias=False)
        share = torch.linspace(0, 1, size)
        low, high = config.min_radius, config.max_radius
        radius = (low**2 + share * (high**2 - low**2)).sqrt()  # uniform on the ring
        self.log_decay = nn.Parameter((-radius.log()).log())
        phase = config.max_phase * torch.rand(size, generator=torch.Generator().manual_seed(0))
        self.log_phase = nn.Parameter(phase.clamp(min=1e-3).log())
        self.output = nn.Sequential(
            nn.Linear(2 * size, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(2 * width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the real and the imaginary part of the state."""
        shape = (self.tokens, self.config.state_size)
        return {"state_real": shape, "state_imaginary": shape}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Mix what is read from the state into tokens x f32 [b, n, d], and pool it over tokens."""
        held = torch.cat([state["state_real"], state["state_imaginary"]], -1)
        recalled = self.output(held)
        pooled = torch.cat([recalled.amax(1), recalled.mean(1)], 1)
        return Retrieved(tokens=gate_mix(self.gate, x, recalled), vector=self.standardize(pooled))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Advance the state by tokens x f32 [b, n, d] where mask f32 [b] is 1."""
        with torch.autocast(x.device.type, enabled=False):
            real, imaginary = state["state_real"], state["state_imaginary"]
            radius, phase = self._eigenvalues()
            cosine, sine = radius * phase.cos(), radius * phase.sin()
            new_real, new_imaginary = self._driven(x.float(), radius)
            new = {
                "state_real": cosine * real - sine * imaginary + new_real,
                "state_imaginary": sine * real + cosine * imaginary + new_imaginary,
            }
            return {n: torch.where(mask[:, None, None] > 0, v, state[n]) for n, v in new.items()}

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; a scan that doubles its reach makes all states."""
        with torch.autocast(x.device.type, enabled=False):
            radius, phase = self._eigenvalues()
            exists = mask[:, :, None, None] > 0
            real, imaginary = self._driven(x.float(), radius)
            inputs = torch.where(exists, torch.complex(real, imaginary), 0)
            factor = torch.where(exists, torch.polar(radius, phase), 1.0)
            held = scan(factor, inputs)
            before = torch.cat([torch.zeros_like(held[:, :1]), held[:, :-1]], 1)[row, decision]
        state = {"state_real": before.real, "state_imaginary": before.imag}
        return self.read(state, x[row, decision], now[row, decision])

    def _eigenvalues(self) -> tuple[Tensor, Tensor]:
        """Return radius, at most 1 for any parameter, and phase f32 [h] of the eigenvalues."""
        return torch.exp(-self.log_decay.exp()), self.log_phase.exp()

    def _driven(self, x: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Return what tokens [..., d] add to the state, real and imaginary part [..., h]."""
        gain = (1 - radius.square()).clamp(min=1e-8).sqrt()
        real, imaginary = self.input(self.norm(x)).chunk(2, -1)
        return gain * real, gain * imaginary
