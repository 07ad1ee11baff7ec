"""Base of action heads that sample a chunk along a chain of Gaussian denoising transitions.

A head adds its noise levels, the meaning of its network's output and one transition. Loss,
sampling, likelihood, prefixes and a separate network for the last steps are here. Sampling and
log-probability both call `step -> mean, std`.
"""

import copy
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig
from vla.contracts.types import Prefix
from vla.nn import denoisers, diffusion
from vla.nn.context import Context

KINDS = {"mlp": denoisers.MlpDenoiser, "transformer": denoisers.TransformerDenoiser}
"""Networks by their name in a configuration."""


@dataclass(frozen=True, kw_only=True)
class DenoisingHeadConfig(PluginConfig):
    """Settings shared by denoising heads; they add `prediction_type` and `build`."""

    denoiser: Literal["mlp", "transformer"] = "mlp"
    """Residual MLP (small preset) or diffusion transformer (large presets)."""
    width: int = 256
    """Width of the denoiser."""
    depth: int = 3
    """Blocks of the denoiser."""
    num_train_timesteps: int = 100
    """Noise levels in training."""
    num_inference_steps: int = 6
    """Denoising steps when acting."""
    num_noise_samples: int = 4
    """Noise draws per encoded decision in training: vision costs more than the denoiser."""
    ft_denoising_steps: int = 0
    """Last denoising steps that have a separate network; 0 for one network."""
    max_prefix_len: int = 0
    """Longest prefix in training, in actions (real-time chunking); 0 for none."""
    min_sampling_denoising_std: float = 0.05
    """Least standard deviation of a stochastic transition, in normalised action units."""
    clip_sample_range: float = 1.5
    """Bound on predicted clean actions, in normalised units (the data lie in [-1, 1])."""


class LossNoise(NamedTuple):
    """Random numbers of the loss of m rows; D is `num_noise_samples`."""

    t: Tensor
    """i64 [D, m], timesteps."""
    noise: Tensor
    """f32 [D, m, k, u]."""
    prefix_mask: Tensor | None
    """bool [D, m, k], True for actions given without noise; None for a head without prefixes."""

    def rows(self, first: int, count: int) -> "LossNoise":
        """Return the numbers of `count` rows."""
        rows = slice(first, first + count)
        mask = None if self.prefix_mask is None else self.prefix_mask[:, rows]
        return LossNoise(self.t[:, rows], self.noise[:, rows], mask)


class DenoisingHead(nn.Module):
    """Samples, scores and trains chunks f32 [b, k, u] in normalised units.

    Args:
        config: A `DenoisingHeadConfig` of the head.
        chunk: k.
        actions: Channels of the networks; `actions`, u, may be set to fewer.
        sizes: Pooled, token and memory width of the context.
        alphas: f32 [num_train_timesteps], signal power by timestep.
        timesteps: Timestep of each denoising step, noisiest first.

    Raises:
        ValueError: `ft_denoising_steps` or `max_prefix_len` is out of range.
    """

    alphas: Tensor

    def __init__(
        self, config: Any, chunk: int, actions: int, sizes: tuple[int, int, int], alphas: Tensor,
        timesteps: tuple[int, ...],
    ) -> None:  # fmt: skip
        super().__init__()
        self.config, self.chunk, self.actions = config, chunk, actions
        self.timesteps = timesteps
        self.register_buffer("alphas", alphas, persistent=False)
        steps, tuned, longest = (
            config.num_inference_steps, config.ft_denoising_steps, config.max_prefix_len,
        )  # fmt: skip
        if not 0 <= tuned < steps:
            raise ValueError(
                f"ft_denoising_steps: got {tuned}, expected less than the {steps} denoising steps"
            )
        if not 0 <= longest < chunk:
            raise ValueError(
                f"max_prefix_len: got {longest}, expected less than the {chunk} actions of a chunk"
            )
        shape = (chunk, actions, sizes, config.width, config.depth, longest > 0)
        self.denoiser: nn.Module = KINDS[config.denoiser](*shape)
        self.late: nn.Module | None = KINDS[config.denoiser](*shape) if tuned else None

    def add_ft_denoiser(self, steps: int) -> None:
        """Give the last `steps` denoising steps a copy of the network, to fine-tune it.

        Raises:
            ValueError: they have a separate network already, or `steps` is out of range.
        """
        total, tuned = self.config.num_inference_steps, self.config.ft_denoising_steps
        if tuned or not 0 < steps < total:
            raise ValueError(
                f"ft_denoising_steps: got {steps}; of {total} denoising steps the last {tuned} "
                f"have a separate network, expected {tuned or f'1 to {total - 1}'}"
            )
        self.config = replace(self.config, ft_denoising_steps=steps)
        self.late = copy.deepcopy(self.denoiser)

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of the noise of one row: (num_inference_steps + 1, k, u)."""
        return (self.config.num_inference_steps + 1, self.chunk, self.actions)

    def predict(
        self, latent: Tensor, t: Tensor, context: Context, prefix_mask: Tensor | None = None
    ) -> Tensor:
        """Return the networks' output for latent f32 [b, k, u] at timestep t i64 [b].

        The late network answers from the timestep of its first step on. Where prefix_mask f32
        [b, k] is 1 the latent is a fixed action.
        """
        output = self.denoiser(latent, t, context, prefix_mask)
        if self.late is None:
            return output
        late = t <= self.timesteps[self.config.num_inference_steps - self.config.ft_denoising_steps]
        tuned = self.late(latent, t, context, prefix_mask)
        return torch.where(late[:, None, None], tuned, output)

    @abstractmethod
    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""

    @abstractmethod
    def mixed(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return chunks f32 [..., k, u] with the noise of timesteps i64 [...]."""

    @abstractmethod
    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return the regression target of the network for a mixture of the two."""

    @abstractmethod
    def draw_timesteps(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return random training timesteps i64."""

    @abstractmethod
    def transition(
        self, i: int, latent: Tensor, clean: Tensor, stochastic: bool
    ) -> tuple[Tensor, float]:
        """Return mean and standard deviation of transition i, towards a clean chunk."""

    def draw(self, rows: int, generator: torch.Generator) -> LossNoise:
        """Return the random numbers of the loss of `rows` rows, from a generator on the CPU.

        With `max_prefix_len`, a random number of first actions is given without noise
        (Black et al. 2025, arXiv 2512.05964, section 4).
        """
        draws, shape = self.config.num_noise_samples, (rows, self.chunk, self.actions)
        t = self.draw_timesteps((draws, rows), generator)
        noise = torch.randn((draws, *shape), generator=generator).to(self.alphas.device)
        mask = None
        if self.config.max_prefix_len:
            mask = self.draw_prefix_mask(draws * rows, generator).view(draws, rows, self.chunk)
        return LossNoise(t, noise, mask)

    def loss(
        self, clean: Tensor, pad: Tensor, context: Context, random: torch.Generator | LossNoise
    ) -> Tensor:
        """Return the loss of each row, f32 [b]; padded and prefix actions carry none.

        Args:
            clean: f32 [b, k, u], normalised actions.
            pad: bool [b, k], True beyond the end of the episode.
            context: Condition of the head.
            random: Source of noise levels and noise, or what `draw` returned.
        """
        draws, (rows, chunk, actions) = self.config.num_noise_samples, clean.shape
        drawn = random if isinstance(random, LossNoise) else self.draw(rows, random)
        noisy = self.mixed(clean, drawn.noise, drawn.t)
        repeated = Context(*(part.expand(draws, *part.shape).flatten(0, 1) for part in context))
        mask, weight = None, (~pad).float()
        if drawn.prefix_mask is not None:
            noisy = torch.where(drawn.prefix_mask[..., None], clean, noisy)
            mask, weight = drawn.prefix_mask.flatten(0, 1).float(), weight * ~drawn.prefix_mask
        output = self.predict(noisy.flatten(0, 1), drawn.t.flatten(), repeated, mask)
        target = self.target(clean.expand_as(noisy), drawn.noise).flatten(0, 1)
        error = (output - target).square().view(draws, rows, chunk, actions).mean(3)
        weight = weight.expand_as(error)
        return (error * weight).sum((0, 2)) / weight.sum((0, 2)).clamp(min=1.0)

    def draw_prefix_mask(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return bool [rows, k], True for the first 0 to `max_prefix_len` actions of each row."""
        longest, device = self.config.max_prefix_len, self.alphas.device
        count = torch.randint(longest + 1, (rows, 1), generator=generator).to(device)
        return torch.arange(self.chunk, device=device) < count

    def step(
        self, i: int, latent: Tensor, context: Context, stochastic: bool,
        prefix: Prefix | None = None,
    ) -> tuple[Tensor, float]:  # fmt: skip
        """Return mean f32 [b, k, u] and standard deviation of transition i of the chain.

        Prefix actions replace the latent without noise; with `guided`, the clean chunk is pulled
        towards them instead. That is guidance through the network's Jacobian (Black et al. 2025,
        arXiv 2506.07339, eq. 2) with the Jacobian replaced by the identity and steps that do not
        overshoot: it needs no gradient, so an inference engine can do it.
        """
        mask = None
        if prefix is not None and not prefix.guided:
            mask = prefix.mask
            latent = torch.where(mask[..., None] > 0, prefix.values, latent)
        t = torch.full((len(latent),), self.timesteps[i], device=latent.device)
        steps = self.config.num_inference_steps
        late = i >= steps - self.config.ft_denoising_steps
        network = self.late if self.late is not None and late else self.denoiser
        clean = self.clean(network(latent, t, context, mask), latent, t)
        if prefix is not None:
            clean = clean + prefix.mask[..., None] * (prefix.values - clean)
        mean, std = self.transition(i, latent, clean, stochastic)
        if prefix is not None and i == steps - 1:  # the schedule may end above 0
            mean = torch.where(prefix.mask[..., None] == 1, prefix.values, mean)
        return mean, std

    def sample(
        self, context: Context, noise: Tensor, stochastic: bool, prefix: Prefix | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the chain.

        Args:
            context: Condition of the head.
            noise: f32 [b, steps + 1, k, u], standard normal; only row 0 counts if deterministic.
            stochastic: Whether transitions are sampled (for RL) or take their mean (DDIM).
            prefix: Fixed first actions, in normalised units.

        Returns:
            Latents f32 [b, steps + 1, k, u], of which the last is the chunk, and log-probabilities
            f32 [b, steps] of each transition (zeros if deterministic).
        """
        latents, log_probs = [noise[:, 0]], []
        for i in range(self.config.num_inference_steps):
            mean, std = self.step(i, latents[-1], context, stochastic, prefix)
            latent = mean + std * noise[:, i + 1] if stochastic else mean
            latents.append(latent)
            log_probs.append(
                diffusion.gaussian_log_prob(latent, mean, std)
                if stochastic
                else torch.zeros(len(latent), device=latent.device)
            )
        return torch.stack(latents, 1), torch.stack(log_probs, 1)

    def log_prob(self, context: Context, latents: Tensor) -> Tensor:
        """Return the log-probability f32 [b, steps] of a stochastic chain's transitions."""
        log_probs = []
        for i in range(self.config.num_inference_steps):
            mean, std = self.step(i, latents[:, i], context, True)
            log_probs.append(diffusion.gaussian_log_prob(latents[:, i + 1], mean, std))
        return torch.stack(log_probs, 1)
