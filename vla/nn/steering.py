"""Steering: a small network chooses the noise from which a policy's denoising starts.

DSRL (Wagenmaker et al. 2025, arXiv 2506.15799): the policy stays as it is, its chain is
deterministic and a chunk is a function of its noise, so the noise is the action to learn. Beside
it, values of chunks choose the best of several. How both are learned is not said here.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla.contracts.config import check_least
from vla.nn import ensembles
from vla.nn.context import Context, widened

LOG_STD = (-4.0, 1.0)
"""Bounds of the logarithm of a standard deviation, before the squashing."""


@dataclass(frozen=True, kw_only=True)
class SteeringConfig:
    """How the noise of a policy is chosen; `vla train rl --algo.type steer` learns it."""

    width: int = 0
    """Width of the networks that choose; 0 where the noise is taken as it is drawn."""
    bound: float = 1.5
    """Largest magnitude of a number of the noise."""
    candidates: int = 1
    """Noises per decision: of their chunks the one of the highest value is executed."""
    critics: int = 5
    """Values in the ensemble."""
    pessimism: float = 1.0
    """How many deviations of the ensemble are taken off its mean where chunks are chosen."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, width=0, bound=0, candidates=1, critics=1, pessimism=0)


class Drawn(NamedTuple):
    """Noise that was chosen."""

    noise: Tensor
    """f32 [m, k, u], within the bound."""
    log_prob: Tensor
    """f32 [m], its log-density, the mean over its numbers, in nats."""


class Steering(nn.Module):
    """The actor and the values.

    Args:
        config: With a width.
        features: Numbers of a decision's pooled features.
        noise_shape: (denoising steps + 1, k, u) of the policy.
        executed: H, the first actions of a chunk, which the values look at.

    Raises:
        ValueError: more candidates than rows of noise to draw them with.
    """

    def __init__(
        self, config: SteeringConfig, features: int, noise_shape: tuple[int, int, int],
        executed: int,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, self.chunk, self.actions = noise_shape
        # The chain draws nothing, so the rows of noise meant for its transitions draw candidates.
        if config.candidates > rows:
            raise ValueError(
                f"candidates: got {config.candidates}, expected at most {rows}: one more than the "
                "policy's denoising steps"
            )
        self.config, self.executed = config, executed
        last = nn.Linear(config.width, 2 * self.chunk * self.actions)
        nn.init.zeros_(last.weight)  # about the noise that the policy was cloned with
        nn.init.zeros_(last.bias)
        self.actor = nn.Sequential(
            nn.Linear(features, config.width), nn.LayerNorm(config.width), nn.Mish(),
            nn.Linear(config.width, config.width), nn.LayerNorm(config.width), nn.Mish(), last,
        )  # fmt: skip
        inputs = features + executed * self.actions
        self.values = ensembles.Ensemble(inputs, config.critics, config.width)

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation f32 [m, k, u] of noise before it is squashed."""
        mean, log_std = self.actor(features).unflatten(1, (2, self.chunk, self.actions)).unbind(1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, features: Tensor, normal: Tensor) -> Drawn:
        """Return noise for features f32 [m, d] from standard normal numbers f32 [m, k, u].

        The density is that of a squashed Gaussian (Haarnoja et al. 2018, appendix C).
        """
        mean, log_std = self.gaussian(features)
        before = mean + log_std.exp() * normal
        share = torch.tanh(before)
        log_normal = -0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)
        slope = torch.log(self.config.bound * (1 - share**2) + 1e-6)
        return Drawn(self.config.bound * share, (log_normal - slope).flatten(1).mean(1))

    def sample(
        self, head: Any, context: Context, noise: Tensor, stochastic: bool
    ) -> tuple[Tensor, Tensor]:
        """Run a head's deterministic chain from chosen noise; as `ChainHead.sample`.

        Args:
            head: The policy's.
            context: What it is conditioned on, b rows.
            noise: f32 [b, steps + 1, k, u], standard normal; row j draws candidate j.
            stochastic: Whether all candidates are drawn, or the first is the actor's mean.

        Returns:
            Latents f32 [b, steps + 1, k, u], the first of them the noise that was chosen, and zeros
            f32 [b, steps]: no transition is drawn.
        """
        count = self.config.candidates
        normal = noise[:, :count]
        if not stochastic:
            normal = torch.cat([torch.zeros_like(normal[:, :1]), normal[:, 1:]], 1)
        wide = widened(context, count)
        start = self.draw(wide.pooled, normal.flatten(0, 1)).noise
        latents, log_prob = head.sample(wide, start[:, None], False)
        if count > 1:
            value = self.values(wide.pooled, latents[:, -1, : self.executed])
            best = ensembles.cautious(value, self.config.pessimism).unflatten(0, (-1, count))
            chosen = best.argmax(1) + count * torch.arange(len(noise), device=noise.device)
            latents, log_prob = latents[chosen], log_prob[chosen]
        return latents, log_prob
