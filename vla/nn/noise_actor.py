"""Noise actor: a small network chooses the noise from which a policy's denoising starts.

DSRL (Wagenmaker et al. 2025, arXiv 2506.15799): the policy is frozen, its chain is deterministic
and a chunk is a function of its noise, so the noise is the action to learn. An ensemble of values
of chunks chooses the best of several. `training.algos.dsrl` trains both.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla.contracts.config import validate_min
from vla.nn import ensembles
from vla.nn.context import Context, repeat_context

LOG_STD = (-4.0, 1.0)
"""Bounds of the logarithm of a standard deviation, before the squashing."""


@dataclass(frozen=True, kw_only=True)
class NoiseActorConfig:
    """Settings of the noise actor; `vla train rl --algo.type dsrl` trains one."""

    width: int = 0
    """Width of actor and values; 0 for no noise actor: the policy uses the sampled noise."""
    noise_bound: float = 1.5
    """Largest magnitude of a number of the noise."""
    best_of_n: int = 1
    """Noises sampled per decision; the chunk of the highest value is executed."""
    num_critics: int = 5
    """Networks in the ensemble of values."""
    lcb_coef: float = 1.0
    """Chunks are chosen by the ensemble's mean minus so many of its standard deviations."""

    def __post_init__(self) -> None:
        validate_min(self, width=0, noise_bound=0, best_of_n=1, num_critics=1, lcb_coef=0)


class NoiseSample(NamedTuple):
    """Noise that the actor sampled."""

    noise: Tensor
    """f32 [m, k, u], within the bound."""
    log_prob: Tensor
    """f32 [m], its log-density, the mean over its numbers, in nats."""


class NoiseActor(nn.Module):
    """Actor and ensemble of values.

    Args:
        config: With a width above 0.
        features: Numbers of a decision's pooled features.
        noise_shape: (denoising steps + 1, k, u) of the policy.
        n_action_steps: First actions of a chunk, which the values read.

    Raises:
        ValueError: `best_of_n` exceeds the rows of noise.
    """

    def __init__(
        self, config: NoiseActorConfig, features: int, noise_shape: tuple[int, int, int],
        n_action_steps: int,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, self.chunk, self.actions = noise_shape
        # The deterministic chain uses row 0 alone: the other rows of noise draw the other samples.
        if config.best_of_n > rows:
            raise ValueError(
                f"best_of_n: got {config.best_of_n}, expected at most {rows}: one more than the "
                "policy's denoising steps"
            )
        self.config, self.n_action_steps = config, n_action_steps
        last = nn.Linear(config.width, 2 * self.chunk * self.actions)
        nn.init.zeros_(last.weight)  # about the noise that the policy was cloned with
        nn.init.zeros_(last.bias)
        self.actor = nn.Sequential(
            nn.Linear(features, config.width), nn.LayerNorm(config.width), nn.Mish(),
            nn.Linear(config.width, config.width), nn.LayerNorm(config.width), nn.Mish(), last,
        )  # fmt: skip
        inputs = features + n_action_steps * self.actions
        self.values = ensembles.Ensemble(inputs, config.num_critics, config.width)

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation f32 [m, k, u] of noise before it is squashed."""
        mean, log_std = self.actor(features).unflatten(1, (2, self.chunk, self.actions)).unbind(1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, features: Tensor, normal: Tensor) -> NoiseSample:
        """Return noise for features f32 [m, d] from standard normal numbers f32 [m, k, u].

        The density is that of a squashed Gaussian (Haarnoja et al. 2018, appendix C).
        """
        mean, log_std = self.gaussian(features)
        squashed = torch.tanh(mean + log_std.exp() * normal)
        log_normal = -0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)
        slope = torch.log(self.config.noise_bound * (1 - squashed**2) + 1e-6)
        log_prob = (log_normal - slope).flatten(1).mean(1)
        return NoiseSample(self.config.noise_bound * squashed, log_prob)

    def sample(
        self, head: Any, context: Context, noise: Tensor, stochastic: bool
    ) -> tuple[Tensor, Tensor]:
        """Run a head's deterministic chain from the chosen noise; as `DenoisingHead.sample`.

        Args:
            head: The policy's.
            context: Condition of the head, b rows.
            noise: f32 [b, steps + 1, k, u], standard normal; row j draws sample j.
            stochastic: Whether all samples are random, or the first is the actor's mean.

        Returns:
            Latents f32 [b, steps + 1, k, u], of which the first is the chosen noise, and zeros
            f32 [b, steps]: no transition is random.
        """
        count = self.config.best_of_n
        normal = noise[:, :count]
        if not stochastic:
            normal = torch.cat([torch.zeros_like(normal[:, :1]), normal[:, 1:]], 1)
        repeated = repeat_context(context, count)
        start = self.draw(repeated.pooled, normal.flatten(0, 1)).noise
        latents, log_prob = head.sample(repeated, start[:, None], False)
        if count > 1:
            values = self.values(repeated.pooled, latents[:, -1, : self.n_action_steps])
            bound = ensembles.lower_confidence_bound(values, self.config.lcb_coef)
            best = bound.unflatten(0, (-1, count)).argmax(1)
            chosen = best + count * torch.arange(len(noise), device=noise.device)
            latents, log_prob = latents[chosen], log_prob[chosen]
        return latents, log_prob
