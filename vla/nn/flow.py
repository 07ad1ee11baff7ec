"""Rectified flow: straight paths from noise to data, and the stochastic chain with their marginals.

Pure functions, no network, no loop. A latent is x_t = (1 - t) x_0 + t x_1 with x_0 clean and x_1
noise; the velocity is v = x_1 - x_0, and acting goes from t = 1 to t = 0 (Liu et al. 2022, arXiv
2209.03003, eq. 1). Times lie on a grid of levels, so that a timestep is a whole number as in a
diffusion chain: level n of N is t = (n + 1) / N.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class FlowSchedule(NamedTuple):
    """The steps of a sampler, first (noisiest) to last."""

    timesteps: tuple[int, ...]
    """Level of the network, one per step."""
    times: tuple[float, ...]
    """Share of noise before each step; 1 before the first."""
    times_next: tuple[float, ...]
    """Share of noise after each step; 0 after the last."""


def times(levels: int) -> Tensor:
    """Return the share of noise of every level, f32 [levels]."""
    return torch.arange(1, levels + 1) / levels


def make_chain(levels: int, steps: int) -> FlowSchedule:
    """Return a chain whose steps are equally long, to the nearest level.

    Raises:
        ValueError: more steps than levels, or none.
    """
    if not 1 <= steps <= levels:
        raise ValueError(f"denoising steps must lie in [1, {levels}], got {steps}")
    at = [round(levels - i * levels / steps) for i in range(steps + 1)]
    share = [n / levels for n in at]
    return FlowSchedule(tuple(n - 1 for n in at[:-1]), tuple(share[:-1]), tuple(share[1:]))


def transition(
    latent: Tensor, clean: Tensor, time: float, time_next: float, noise_level: float, min_std: float
) -> tuple[Tensor, float]:
    """Return mean and standard deviation of p(x_s | x_t, predicted x_0), where s < t.

    Without noise this is Euler's step x_t - (t - s) v. With it, it is the flow SDE of Flow-GRPO
    (Liu et al. 2025, arXiv 2505.05470, section 4.2): sigma_t = a sqrt(t / (1 - t)), and at t = 1
    the next time in the denominator. Its mean x_0 (1 - s) + x_1 (s - sigma^2 (t - s) / (2 t)) is
    that of infinitely short steps; a few long ones would add noise. With x_1 scaled by
    sqrt(s^2 - std^2), equal to it to first order, signal and noise keep the shares that the ODE
    gives them however long a step is ("coefficients-preserving", arXiv 2509.05952). No transition
    is narrower than `min_std` (DPPO, arXiv 2409.00588, section 4.3): where the path still has that
    much noise it takes the place of noise that was there, after the last step it is added.

    Args:
        latent: x_t.
        clean: Predicted x_0, same shape.
        time: t, above 0.
        time_next: s.
        noise_level: a; 0 is the ODE.
        min_std: Lower bound of the standard deviation.
    """
    noise = (latent - (1 - time) * clean) / time
    sigma = noise_level * math.sqrt(time / (1 - min(time, time_next if time == 1 else time)))
    std = min(max(sigma * math.sqrt(time - time_next), min_std), time_next)
    mean = (1 - time_next) * clean + math.sqrt(time_next**2 - std**2) * noise
    return mean, max(std, min_std)
