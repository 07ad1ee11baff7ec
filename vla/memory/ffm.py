"""Fast and forgetful memory: traces of what was seen, which fade and turn at many speeds.

Morad et al. 2023 (arXiv 2310.04128): S_t = exp(-a + i w) S_(t-1) + x_t 1^T with m traces x_t, each
kept with c frequencies; what is read mixes magnitude and phase, so that it says what was seen and
when. All decay rates |a| and frequencies w are learned; they begin spread over `longest_decisions`.
Its state has a fixed size for any episode length, and everything in it fades.

Otherwise than there: a decision is one vector of all its tokens, and reads before it is written;
what is read is gated into the tokens; traces are made by a scan, whose products cannot overflow.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize
from vla.nn.scan import scan

LEFT = 0.01
"""What is left of the slowest trace after `longest_decisions`, at the start of training."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the fast and forgetful memory."""

    traces: int = 32
    """Numbers m that are remembered of a decision."""
    frequencies: int = 4
    """Frequencies c with which each of them turns."""
    longest_decisions: int = 1024
    """Decisions that the slowest trace and the slowest turn cover at the start of training."""

    def __post_init__(self) -> None:
        validate_min(self, traces=1, frequencies=1, longest_decisions=2)

    def build(self, tokens: int, width: int) -> "FastForgetfulMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return FastForgetfulMemory(self, tokens, width)


class FastForgetfulMemory(StateMemory):
    """Fast and forgetful memory; it ignores the time between decisions."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.input = nn.Linear(tokens * width, 2 * config.traces)
        # Half-lives from one decision to the longest, evenly by ratio; so are periods.
        spread = torch.logspace(0, 1, config.traces, base=config.longest_decisions)
        self.log_decay = nn.Parameter((-math.log(LEFT) / spread).log())
        period = torch.logspace(0, 1, config.frequencies, base=config.longest_decisions)
        self.frequency = nn.Parameter(math.pi / period)
        held = 2 * config.traces * config.frequencies
        self.norm_held = nn.LayerNorm(held)
        self.hidden = nn.Sequential(nn.Linear(held, 2 * width), nn.GELU())
        self.recalled = nn.Linear(2 * width, width)
        self.output = nn.Linear(2 * width, self.vector_size)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(self.vector_size)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the real and the imaginary part of the traces."""
        shape = (self.config.traces, self.config.frequencies)
        return {"traces_real": shape, "traces_imaginary": shape}

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Mix what the traces tell into tokens x f32 [b, n, d]."""
        with torch.autocast(x.device.type, enabled=False):
            held = torch.cat([state["traces_real"], state["traces_imaginary"]], -1).flatten(1)
            hidden = self.hidden(self.norm_held(held))
            recalled = self.recalled(hidden)[:, None].expand_as(x)
            tokens = gate_mix(self.gate, x.float(), recalled)
            return Retrieved(tokens=tokens, vector=self.standardize(self.output(hidden)))

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Fade, turn, and add tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32."""
        with torch.autocast(x.device.type, enabled=False):
            real, imaginary = state["traces_real"], state["traces_imaginary"]
            radius = self._radius()[:, None]
            cosine, sine = radius * self.frequency.cos(), radius * self.frequency.sin()
            new = {
                "traces_real": cosine * real - sine * imaginary + self._added(x)[..., None],
                "traces_imaginary": sine * real + cosine * imaginary,
            }
            return {n: torch.where(mask[:, None, None] > 0, v, state[n]) for n, v in new.items()}

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; a scan makes all states."""
        with torch.autocast(x.device.type, enabled=False):
            exists = mask[:, :, None, None] > 0
            radius = self._radius()[:, None].expand(-1, self.config.frequencies)
            added = torch.where(exists, self._added(x)[..., None], 0.0).to(torch.complex64)
            factor = torch.where(exists, torch.polar(radius, self.frequency.expand_as(radius)), 1.0)
            held = scan(factor, added.expand(*added.shape[:3], self.config.frequencies))
            before = torch.cat([torch.zeros_like(held[:, :1]), held[:, :-1]], 1)[row, decision]
        state = {"traces_real": before.real, "traces_imaginary": before.imag}
        return self.read(state, x[row, decision], now[row, decision])

    def _radius(self) -> Tensor:
        """Return what is left of each trace after a decision, f32 [m], at most 1."""
        return torch.exp(-self.log_decay.exp())

    def _added(self, x: Tensor) -> Tensor:
        """Return what decisions f32 [..., n, d] add to the traces, f32 [..., m]."""
        value, gate = self.input(self.norm(x.float()).flatten(-2)).chunk(2, -1)
        added: Tensor = value * torch.sigmoid(gate)
        return added
