"""The flow-matching action head: a velocity field from noise to chunks, followed by Euler steps.

As in pi0 (Black et al. 2024, arXiv 2410.24164, section IV), by the denoisers of the diffusion head.
For online RL the ODE becomes an SDE with the same marginals and Gaussian transitions.
`vla.nn.denoising_head` holds the code that it shares with other heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vla.nn import flow
from vla.nn.denoising_head import DenoisingHead, DenoisingHeadConfig


@dataclass(frozen=True, kw_only=True)
class Config(DenoisingHeadConfig):
    """Settings of the flow-matching head."""

    num_train_timesteps: int = 1000
    """Levels of the grid on which times lie."""
    prediction_type: Literal["velocity", "sample"] = "velocity"
    """What the network predicts: noise less clean chunk, or the clean chunk."""
    noise_level: float = 0.5
    """Strength of the noise of a stochastic chain (a of Flow-GRPO)."""

    def build(self, chunk: int, actions: int, sizes: tuple[int, int, int]) -> "FlowMatchingHead":
        """Return a head for chunks of `chunk` x `actions`; sizes: pooled, token, memory widths."""
        return FlowMatchingHead(self, chunk, actions, sizes)


class FlowMatchingHead(DenoisingHead):
    """Flow matching on chunks f32 [b, k, u] in normalised units."""

    path = "flow"
    """How signal and noise are mixed, for `deploy.runtime.chain`."""

    def __init__(
        self, config: Config, chunk: int, actions: int, sizes: tuple[int, int, int]
    ) -> None:
        chain = flow.make_chain(config.num_train_timesteps, config.num_inference_steps)
        alphas = (1 - flow.times(config.num_train_timesteps)) ** 2
        super().__init__(config, chunk, actions, sizes, alphas, chain.timesteps)
        self.chain = chain

    def time(self, t: Tensor) -> Tensor:
        """Return the share of noise f32 [..., 1, 1] at timesteps i64 [...]."""
        return ((t + 1) / self.config.num_train_timesteps)[..., None, None]

    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""
        if self.config.prediction_type == "velocity":
            output = latent - self.time(t) * output
        return output.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)

    def mixed(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return chunks f32 [..., k, u] with the noise of timesteps i64 [...]."""
        share = self.time(t)
        return (1 - share) * clean + share * noise

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return the regression target of the network for a mixture of the two."""
        return clean if self.config.prediction_type == "sample" else noise - clean

    def draw_timesteps(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return random timesteps i64 of density 1.5 sqrt(t), the Beta(1.5, 1) of pi0 (arXiv
        2410.24164, appendix B).
        """
        share = torch.rand(shape, generator=generator).to(self.alphas.device) ** (2 / 3)
        levels = self.config.num_train_timesteps
        return (share * levels).long().clamp(max=levels - 1)

    def transition(
        self, i: int, latent: Tensor, clean: Tensor, stochastic: bool
    ) -> tuple[Tensor, float]:
        """Return mean and standard deviation of transition i: Euler's step, or the SDE's."""
        c, time, time_next = self.config, self.chain.times[i], self.chain.times_next[i]
        noise, floor = (c.noise_level, c.min_sampling_denoising_std) if stochastic else (0.0, 0.0)
        return flow.transition(latent, clean, time, time_next, noise, floor)
