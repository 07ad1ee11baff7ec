"""The diffusion action head: trains, samples and scores chunks of normalised actions.

`vla.nn.denoising_head` holds the code that it shares with other heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vla.nn import diffusion
from vla.nn.denoising_head import DenoisingHead, DenoisingHeadConfig


@dataclass(frozen=True, kw_only=True)
class Config(DenoisingHeadConfig):
    """Settings of the diffusion head."""

    prediction_type: Literal["sample", "epsilon"] = "sample"
    """What the network predicts: the clean chunk, or the noise."""

    def build(self, chunk: int, actions: int, sizes: tuple[int, int, int]) -> "DiffusionHead":
        """Return a head for chunks of `chunk` x `actions`; sizes: pooled, token, memory widths."""
        return DiffusionHead(self, chunk, actions, sizes)


class DiffusionHead(DenoisingHead):
    """DDIM and DDPM on chunks f32 [b, k, u] in normalised units."""

    path = "diffusion"
    """How signal and noise are mixed, for `deploy.runtime.chain`."""

    def __init__(
        self, config: Config, chunk: int, actions: int, sizes: tuple[int, int, int]
    ) -> None:
        alphas = diffusion.cosine_alphas(config.num_train_timesteps)
        chain = diffusion.make_chain(alphas, config.num_inference_steps)
        super().__init__(config, chunk, actions, sizes, alphas, chain.timesteps)
        self.chain = chain

    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""
        if self.config.prediction_type == "epsilon":
            alpha = self.alphas[t][:, None, None]
            output = (latent - (1 - alpha).sqrt() * output) / alpha.sqrt()
        return output.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)

    def mixed(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return chunks f32 [..., k, u] with the noise of timesteps i64 [...]."""
        return diffusion.add_noise(clean, noise, self.alphas[t][..., None, None])

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return the regression target of the network for a mixture of the two."""
        return clean if self.config.prediction_type == "sample" else noise

    def draw_timesteps(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return uniform random timesteps i64."""
        levels, device = self.config.num_train_timesteps, self.alphas.device
        return torch.randint(levels, shape, generator=generator).to(device)

    def transition(
        self, i: int, latent: Tensor, clean: Tensor, stochastic: bool
    ) -> tuple[Tensor, float]:
        """Return mean and standard deviation of transition i: DDIM, or the variance of DDPM."""
        eta, floor = (1.0, self.config.min_sampling_denoising_std) if stochastic else (0.0, 0.0)
        return diffusion.transition(
            latent, clean, self.chain.alphas[i], self.chain.alphas_prev[i], eta, floor
        )
