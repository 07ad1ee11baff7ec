"""The denoising chain on the host, in numpy: what `vla.nn.diffusion` does, without torch.

A test holds the two together.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    """One deterministic step."""

    timestep: int
    """Training timestep at which the network is asked."""
    alpha: float
    """Cumulative signal power before it."""
    alpha_prev: float
    """Cumulative signal power after it."""


def steps(alphas: Sequence[float], count: int) -> tuple[Step, ...]:
    """Return `count` steps with "trailing" spacing (Lin et al. 2024, arXiv 2305.08891, table 2).

    Raises:
        ValueError: more steps than training timesteps, or none.
    """
    whole = len(alphas)
    if not 1 <= count <= whole:
        raise ValueError(f"denoising steps must lie in [1, {whole}], got {count}")
    found = []
    for i in range(count):
        t = round(whole - i * whole / count) - 1
        before = t - whole // count
        found.append(Step(t, alphas[t], alphas[before] if before >= 0 else 1.0))
    return tuple(found)


def step(latent: np.ndarray, clean: np.ndarray, at: Step) -> np.ndarray:
    """Return x_prev f32 [b, k, u] from x_t and predicted x_0: DDIM with eta = 0.

    Song et al. 2021 (arXiv 2010.02502), eq. 12.
    """
    noise = (latent - math.sqrt(at.alpha) * clean) / math.sqrt(1 - at.alpha)
    return (math.sqrt(at.alpha_prev) * clean + math.sqrt(1 - at.alpha_prev) * noise).astype(
        np.float32
    )
