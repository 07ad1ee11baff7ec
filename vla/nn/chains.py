"""What action heads share that sample a chunk along a chain of Gaussian transitions.

A head brings its noise levels, what its network says and one transition; loss, sampling,
likelihood, prefixes and a network of their own for the last steps are here. `step -> mean, std` is
one function, used by sampling and by log-probability alike.
"""

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla.nn import denoisers, diffusion
from vla.nn.context import Context, Settled

KINDS = {"mlp": denoisers.MlpDenoiser, "transformer": denoisers.TransformerDenoiser}
"""Networks by the name they have in a configuration."""


class Drawn(NamedTuple):
    """What is random in the loss of m rows."""

    t: Tensor
    """i64 [draws, m], timesteps."""
    noise: Tensor
    """f32 [draws, m, k, u]."""
    settled: Tensor | None
    """bool [draws, m, k], True in actions that are given without noise; None without prefixes."""

    def rows(self, first: int, count: int) -> "Drawn":
        """Return what was drawn for some rows."""
        settled = None if self.settled is None else self.settled[:, first : first + count]
        return Drawn(
            self.t[:, first : first + count], self.noise[:, first : first + count], settled
        )


class ChainHead(nn.Module):
    """See the module's sentence; chunks are f32 [b, k, u] in normalised units.

    Args:
        config: The head's: denoiser, width, depth, train_timesteps, steps, draws, tuned, prefix.
        chunk: k.
        actions: u.
        sizes: Pooled, token and memory width of what it is conditioned on.
        alphas: f32 [train_timesteps], signal power by timestep.
        timesteps: At which the network is asked, one per step, noisiest first.

    Raises:
        ValueError: `tuned` or `prefix` is out of range.
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
        if not 0 <= config.tuned < config.steps:
            raise ValueError(
                f"tuned: got {config.tuned}, expected less than the {config.steps} denoising steps"
            )
        if not 0 <= config.prefix < chunk:
            raise ValueError(
                f"prefix: got {config.prefix}, expected less than the {chunk} actions of a chunk"
            )
        shape = (chunk, actions, sizes, config.width, config.depth, config.prefix > 0)
        self.denoiser: nn.Module = KINDS[config.denoiser](*shape)
        self.late: nn.Module | None = KINDS[config.denoiser](*shape) if config.tuned else None

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
        late = t <= self.timesteps[self.config.steps - self.config.tuned]
        return torch.where(late[:, None, None], self.late(latent, t, context, known), found)

    @abstractmethod
    def clean(self, output: Tensor, latent: Tensor, t: Tensor) -> Tensor:
        """Return the clean chunk that a network's output stands for."""

    @abstractmethod
    def mixed(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return chunks f32 [..., k, u] with the noise of timesteps i64 [...]."""

    @abstractmethod
    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return what the network should say of a mixture of the two."""

    @abstractmethod
    def draw_timesteps(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return the timesteps i64 at which a network learns."""

    @abstractmethod
    def transition(
        self, i: int, latent: Tensor, clean: Tensor, stochastic: bool
    ) -> tuple[Tensor, float]:
        """Return mean and standard deviation of transition i, towards a clean chunk."""

    def draw(self, rows: int, generator: torch.Generator) -> Drawn:
        """Return what is random in the loss of `rows` rows.

        With `prefix`, as many first actions as are drawn, 0 to that, are given without noise
        (Black et al. 2025, arXiv 2512.05964, section 4).
        """
        draws, shape = self.config.draws, (rows, self.chunk, self.actions)
        t = self.draw_timesteps((draws, rows), generator)
        noise = torch.randn((draws, *shape), generator=generator, device=self.alphas.device)
        settled = None
        if self.config.prefix:
            settled = self.draw_prefix(draws * rows, generator).view(draws, rows, self.chunk)
        return Drawn(t, noise, settled)

    def loss(
        self, clean: Tensor, pad: Tensor, context: Context, random: torch.Generator | Drawn
    ) -> Tensor:
        """Return the loss of each row, f32 [b]; padded and settled actions carry none.

        Args:
            clean: f32 [b, k, u], normalised actions.
            pad: bool [b, k], True beyond the end of the episode.
            context: What the head is conditioned on.
            random: Draws noise levels and noise, or what was drawn.
        """
        draws, (rows, chunk, actions) = self.config.draws, clean.shape
        drawn = random if isinstance(random, Drawn) else self.draw(rows, random)
        noisy = self.mixed(clean, drawn.noise, drawn.t)
        wide = Context(*(_repeat(part, draws) for part in context))
        known, keep = None, (~pad).float()
        if drawn.settled is not None:
            noisy = torch.where(drawn.settled[..., None], clean, noisy)
            known, keep = drawn.settled.flatten(0, 1).float(), keep * ~drawn.settled
        output = self.predict(noisy.flatten(0, 1), drawn.t.flatten(), wide, known)
        target = self.target(clean.expand_as(noisy), drawn.noise).flatten(0, 1)
        error = (output - target).square().view(draws, rows, chunk, actions).mean(3)
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
        t = torch.full((len(latent),), self.timesteps[i], device=latent.device)
        late = i >= self.config.steps - self.config.tuned
        network = self.late if self.late is not None and late else self.denoiser
        clean = self.clean(network(latent, t, context, known), latent, t)
        if settled is not None:
            clean = clean + settled.weight[..., None] * (settled.values - clean)
        mean, std = self.transition(i, latent, clean, stochastic)
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
