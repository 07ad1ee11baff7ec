"""The diffusion action head: trains, samples and scores chunks of normalised actions.

It knows nothing of images, memory or units. `chain step -> mean, std` is one function, used by
sampling and by log-probability alike.
"""

import copy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig
from vla.nn import denoisers, diffusion
from vla.nn.context import Context, Settled


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the diffusion head."""

    denoiser: Literal["mlp", "transformer"] = "mlp"
    """Residual MLP (small preset) or diffusion transformer (large presets)."""
    width: int = 256
    """Width of the denoiser."""
    depth: int = 3
    """Blocks of the denoiser."""
    train_timesteps: int = 100
    """Noise levels in training."""
    steps: int = 6
    """Denoising steps when acting."""
    prediction: Literal["sample", "epsilon"] = "sample"
    """What the network predicts: the clean chunk, or the noise."""
    draws: int = 4
    """Noise draws per encoded decision in training: vision costs more than the denoiser."""
    tuned: int = 0
    """Denoising steps, the last ones, that have a network of their own; 0 where one does all."""
    prefix: int = 0
    """Most settled actions that a chunk learns to go on from (real-time chunking); 0 for none."""
    min_std: float = 0.05
    """Least standard deviation of a stochastic transition, in normalised action units."""
    clip: float = 1.5
    """Bound on predicted clean actions, in normalised units (the data lie in [-1, 1])."""

    def build(self, chunk: int, actions: int, sizes: tuple[int, int, int]) -> "DiffusionHead":
        """Return a head for chunks of `chunk` x `actions`; sizes: pooled, token, memory widths."""
        return DiffusionHead(self, chunk, actions, sizes)


class DiffusionHead(nn.Module):
    """See the module's sentence; chunks are f32 [b, k, u] in normalised units."""

    def __init__(
        self, config: Config, chunk: int, actions: int, sizes: tuple[int, int, int]
    ) -> None:
        super().__init__()
        self.config, self.chunk, self.actions = config, chunk, actions
        kinds = {"mlp": denoisers.MlpDenoiser, "transformer": denoisers.TransformerDenoiser}
        alphas = diffusion.cosine_alphas(config.train_timesteps)
        self.register_buffer("alphas", alphas, persistent=False)
        self.chain = diffusion.make_chain(alphas, config.steps)
        if not 0 <= config.tuned < config.steps:
            raise ValueError(
                f"tuned: got {config.tuned}, expected less than the {config.steps} denoising steps"
            )
        if not 0 <= config.prefix < chunk:
            raise ValueError(
                f"prefix: got {config.prefix}, expected less than the {chunk} actions of a chunk"
            )
        shape = (chunk, actions, sizes, config.width, config.depth, config.prefix > 0)
        self.denoiser: nn.Module = kinds[config.denoiser](*shape)
        self.late: nn.Module | None = kinds[config.denoiser](*shape) if config.tuned else None

    def split_(self, tuned: int) -> None:
        """Give the last `tuned` steps a copy of the network, which stands for all so far.

        Raises:
            ValueError: the last steps have a network of their own already, or `tuned` is no part.
        """
        steps, own = self.config.steps, self.config.tuned
        if own or not 0 < tuned < steps:
            raise ValueError(
                f"tuned: got {tuned}; of {steps} denoising steps the last {own} have a network of "
                f"their own, and it takes {own or f'1 to {steps - 1}'} to tune some"
            )
        self.config = replace(self.config, tuned=tuned)
        self.late = copy.deepcopy(self.denoiser)

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of the noise of one row: (steps + 1, k, u)."""
        return (self.config.steps + 1, self.chunk, self.actions)

    def predict(
        self, latent: Tensor, t: Tensor, context: Context, known: Tensor | None = None
    ) -> Tensor:
        """Return what the networks say of latent f32 [b, k, u] at timestep t i64 [b]: the late one
        from the timestep of the first step that is its own, the other one above it. Where known
        f32 [b, k] is 1 the latent is a settled action.
        """
        found = self.denoiser(latent, t, context, known)
        if self.late is None:
            return found
        late = t <= self.chain.timesteps[self.config.steps - self.config.tuned]
        return torch.where(late[:, None, None], self.late(latent, t, context, known), found)

    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""
        if self.config.prediction == "epsilon":
            alpha = self.alphas[t][:, None, None]
            output = (latent - (1 - alpha).sqrt() * output) / alpha.sqrt()
        return output.clamp(-self.config.clip, self.config.clip)

    def loss(
        self, clean: Tensor, pad: Tensor, context: Context, generator: torch.Generator
    ) -> Tensor:
        """Return the denoising loss of each row, f32 [b]; padded actions carry none.

        With `prefix`, as many first actions as are drawn, 0 to that, are given without noise and
        carry none either (Black et al. 2025, arXiv 2512.05964, section 4).

        Args:
            clean: f32 [b, k, u], normalised actions.
            pad: bool [b, k], True beyond the end of the episode.
            context: What the head is conditioned on.
            generator: Draws noise levels and noise.
        """
        draws, (rows, chunk, actions) = self.config.draws, clean.shape
        t = torch.randint(
            self.config.train_timesteps, (draws, rows), generator=generator, device=clean.device
        )
        noise = torch.randn((draws, *clean.shape), generator=generator, device=clean.device)
        noisy = diffusion.add_noise(clean, noise, self.alphas[t][..., None, None])
        wide = Context(*(_repeat(part, draws) for part in context))
        known, keep = None, (~pad).float()
        if self.config.prefix:
            settled = self.draw_prefix(draws * rows, generator)
            noisy = torch.where(settled.view(draws, rows, chunk, 1), clean, noisy)
            known, keep = settled.float(), keep * (~settled).view(draws, rows, chunk)
        output = self.predict(noisy.flatten(0, 1), t.flatten(), wide, known)
        target = clean.expand_as(noisy) if self.config.prediction == "sample" else noise
        error = (output - target.flatten(0, 1)).square().view(draws, rows, chunk, actions).mean(3)
        keep = keep.expand_as(error)
        return (error * keep).sum((0, 2)) / keep.sum((0, 2)).clamp(min=1.0)

    def draw_prefix(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return bool [rows, k], True in the first actions, from none to `prefix` of them."""
        device = self.alphas.device
        count = torch.randint(self.config.prefix + 1, (rows, 1), generator=generator, device=device)
        return torch.arange(self.chunk, device=device) < count

    def step(
        self, i: int, latent: Tensor, context: Context, stochastic: bool,
        settled: Settled | None = None,
    ) -> tuple[Tensor, float]:  # fmt: skip
        """Return mean f32 [b, k, u] and standard deviation of transition i of the chain.

        Settled actions stand in the latent without noise; or, guided, the clean chunk is pulled
        towards them. That is what guidance through the network's Jacobian (Black et al. 2025, arXiv
        2506.07339, eq. 2) becomes where the Jacobian is taken for the identity and no step goes
        beyond them: it needs no gradient, so an engine can do it.
        """
        known = None
        if settled is not None and not settled.guided:
            known = settled.weight
            latent = torch.where(known[..., None] > 0, settled.values, latent)
        t = torch.full((len(latent),), self.chain.timesteps[i], device=latent.device)
        late = i >= self.config.steps - self.config.tuned
        network = self.late if self.late is not None and late else self.denoiser
        clean = self.clean(network(latent, t, context, known), latent, t)
        if settled is not None:
            clean = clean + settled.weight[..., None] * (settled.values - clean)
        eta, floor = (1.0, self.config.min_std) if stochastic else (0.0, 0.0)
        mean, std = diffusion.transition(
            latent, clean, self.chain.alphas[i], self.chain.alphas_prev[i], eta, floor
        )
        if settled is not None and i == self.config.steps - 1:  # the schedule may end above 0
            mean = torch.where(settled.weight[..., None] == 1, settled.values, mean)
        return mean, std

    def sample(
        self, context: Context, noise: Tensor, stochastic: bool, settled: Settled | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the chain.

        Args:
            context: What the head is conditioned on.
            noise: f32 [b, steps + 1, k, u], standard normal; only row 0 counts if deterministic.
            stochastic: Whether transitions are drawn (for RL) or take their mean (DDIM).
            settled: Actions that the chunk goes on from.

        Returns:
            Latents f32 [b, steps + 1, k, u], the last of them the chunk, and the log-probability
            f32 [b, steps] of each transition (zeros if deterministic).
        """
        latents, log_probs = [noise[:, 0]], []
        for i in range(self.config.steps):
            mean, std = self.step(i, latents[-1], context, stochastic, settled)
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
        scores = []
        for i in range(self.config.steps):
            mean, std = self.step(i, latents[:, i], context, True)
            scores.append(diffusion.gaussian_log_prob(latents[:, i + 1], mean, std))
        return torch.stack(scores, 1)


def _repeat(part: Tensor, draws: int) -> Tensor:
    return part.expand(draws, *part.shape).flatten(0, 1)
