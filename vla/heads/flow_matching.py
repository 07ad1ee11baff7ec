"""The flow-matching action head: a velocity field from noise to chunks, followed by Euler steps.

As in pi0 (Black et al. 2024, arXiv 2410.24164, section IV), by the denoisers of the diffusion head.
For learning from practice the ODE becomes an SDE with the same marginals, whose transitions are
Gaussian. What it shares with other heads is in `vla.nn.chains`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vla.contracts.config import PluginConfig
from vla.nn import flow
from vla.nn.chains import ChainHead


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the flow-matching head."""

    denoiser: Literal["mlp", "transformer"] = "mlp"
    """Residual MLP (small preset) or diffusion transformer (large presets)."""
    width: int = 256
    """Width of the denoiser."""
    depth: int = 3
    """Blocks of the denoiser."""
    train_timesteps: int = 1000
    """Levels of the grid on which times lie."""
    steps: int = 6
    """Euler steps when acting."""
    prediction: Literal["velocity", "sample"] = "velocity"
    """What the network predicts: noise less clean chunk, or the clean chunk."""
    draws: int = 4
    """Noise draws per encoded decision in training: vision costs more than the denoiser."""
    tuned: int = 0
    """Steps, the last ones, that have a network of their own; 0 where one does all."""
    prefix: int = 0
    """Most settled actions that a chunk learns to go on from (real-time chunking); 0 for none."""
    noise_level: float = 0.5
    """Strength of the noise of a stochastic chain (a of Flow-GRPO)."""
    min_std: float = 0.05
    """Least standard deviation of a stochastic transition, in normalised action units."""
    clip: float = 1.5
    """Bound on predicted clean actions, in normalised units (the data lie in [-1, 1])."""

    def build(self, chunk: int, actions: int, sizes: tuple[int, int, int]) -> "FlowMatchingHead":
        """Return a head for chunks of `chunk` x `actions`; sizes: pooled, token, memory widths."""
        return FlowMatchingHead(self, chunk, actions, sizes)


class FlowMatchingHead(ChainHead):
    """See the module's sentence; chunks are f32 [b, k, u] in normalised units."""

    path = "flow"
    """How signal and noise are mixed, for `deploy.chain`."""

    def __init__(
        self, config: Config, chunk: int, actions: int, sizes: tuple[int, int, int]
    ) -> None:
        chain = flow.make_chain(config.train_timesteps, config.steps)
        alphas = (1 - flow.times(config.train_timesteps)) ** 2
        super().__init__(config, chunk, actions, sizes, alphas, chain.timesteps)
        self.chain = chain

    def time(self, t: Tensor) -> Tensor:
        """Return the share of noise f32 [..., 1, 1] at timesteps i64 [...]."""
        return ((t + 1) / self.config.train_timesteps)[..., None, None]

    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""
        if self.config.prediction == "velocity":
            output = latent - self.time(t) * output
        return output.clamp(-self.config.clip, self.config.clip)

    def mixed(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return chunks f32 [..., k, u] with the noise of timesteps i64 [...]."""
        share = self.time(t)
        return (1 - share) * clean + share * noise

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return what the network should say of a mixture of the two."""
        return clean if self.config.prediction == "sample" else noise - clean

    def draw_timesteps(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return timesteps i64, noisy ones more often: times of density 1.5 sqrt(t), which is the
        Beta(1.5, 1) of pi0 (arXiv 2410.24164, appendix B).
        """
        share = torch.rand(shape, generator=generator, device=self.alphas.device) ** (2 / 3)
        levels = self.config.train_timesteps
        return (share * levels).long().clamp(max=levels - 1)

    def transition(
        self, i: int, latent: Tensor, clean: Tensor, stochastic: bool
    ) -> tuple[Tensor, float]:
        """Return mean and standard deviation of transition i: Euler's step, or the SDE's."""
        noise, floor = (self.config.noise_level, self.config.min_std) if stochastic else (0.0, 0.0)
        time, time_next = self.chain.times[i], self.chain.times_next[i]
        return flow.transition(latent, clean, time, time_next, noise, floor)
