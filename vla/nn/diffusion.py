"""Noise schedule and transition kernel of a diffusion chain: pure functions, no network, no loop.

One kernel gives the mean and standard deviation of every denoising step. Sampling and
log-probability both use it, so the two cannot disagree. Conventions are those of `diffusers`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class DiffusionSchedule(NamedTuple):
    """The steps of a sampler, first (noisiest) to last."""

    timesteps: tuple[int, ...]
    """Training timestep of the network, one per step."""
    alphas: tuple[float, ...]
    """Cumulative signal power before each step: alpha_bar(t)."""
    alphas_prev: tuple[float, ...]
    """Cumulative signal power after each step; 1 where a step leaves the schedule."""


def cosine_alphas(timesteps: int) -> Tensor:
    """Return alpha_bar f32 [timesteps] of the squared-cosine schedule.

    Nichol and Dhariwal 2021 (arXiv 2102.09672), eq. 17; equals `diffusers`' "squaredcos_cap_v2".
    """

    def alpha_bar(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [
        min(1 - alpha_bar((t + 1) / timesteps) / alpha_bar(t / timesteps), 0.999)
        for t in range(timesteps)
    ]
    return torch.cumprod(1.0 - torch.tensor(betas, dtype=torch.float32), dim=0)


def make_chain(alphas: Tensor, steps: int) -> DiffusionSchedule:
    """Return the sampler's chain with "trailing" spacing, which starts at the noisiest timestep.

    Lin et al. 2024 (arXiv 2305.08891), table 2; equals `diffusers`' DDIMScheduler with
    timestep_spacing="trailing".

    Raises:
        ValueError: more sampling steps than training timesteps, or none.
    """
    count = len(alphas)
    if not 1 <= steps <= count:
        raise ValueError(f"denoising steps must lie in [1, {count}], got {steps}")
    timesteps = tuple(round(count - i * count / steps) - 1 for i in range(steps))
    before = [t - count // steps for t in timesteps]
    return DiffusionSchedule(
        timesteps=timesteps,
        alphas=tuple(float(alphas[t]) for t in timesteps),
        alphas_prev=tuple(float(alphas[t]) if t >= 0 else 1.0 for t in before),
    )


def add_noise(clean: Tensor, noise: Tensor, alpha: Tensor) -> Tensor:
    """Return the noised sample q(x_t | x_0): sqrt(a) x_0 + sqrt(1 - a) noise; shapes broadcast."""
    return alpha.sqrt() * clean + (1 - alpha).sqrt() * noise


def transition(
    latent: Tensor, clean: Tensor, alpha: float, alpha_prev: float, eta: float, min_std: float
) -> tuple[Tensor, float]:
    """Return mean and standard deviation of p(x_prev | x_t, predicted x_0).

    Song et al. 2021 (arXiv 2010.02502), eq. 12 and 16, with a floor on the standard deviation as
    in DPPO (arXiv 2409.00588), section 4.3. eta = 0 and min_std = 0 is deterministic DDIM.

    Args:
        latent: x_t.
        clean: Predicted x_0, same shape.
        alpha: alpha_bar at x_t.
        alpha_prev: alpha_bar at x_prev.
        eta: 0 is DDIM, 1 has the variance of DDPM.
        min_std: Lower bound of the standard deviation.
    """
    noise = (latent - math.sqrt(alpha) * clean) / math.sqrt(1 - alpha)
    variance = (1 - alpha_prev) / (1 - alpha) * (1 - alpha / alpha_prev)
    std = eta * math.sqrt(variance)
    mean = math.sqrt(alpha_prev) * clean + math.sqrt(max(1 - alpha_prev - std**2, 0.0)) * noise
    return mean, max(std, min_std)


def gaussian_log_prob(value: Tensor, mean: Tensor, std: float) -> Tensor:
    """Return log N(value; mean, std^2 I) of [b, k, u] tensors, summed over k and u: nats [b]."""
    z = (value - mean) / std
    return (-0.5 * z**2 - math.log(std) - 0.5 * math.log(2 * math.pi)).flatten(1).sum(1)
