"""The denoising chain in numpy: a head's deterministic steps without torch.

A latent is signal times the clean chunk plus noise times the initial noise; a step changes these
two weights, which depend on the head. A test compares this with `vla.nn.diffusion` and
`vla.nn.flow`.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Path = Literal["diffusion", "flow"]
"""Weight of the noise next to a signal of power a: sqrt(1 - a), or 1 - sqrt(a)."""


class Step(NamedTuple):
    """One deterministic step."""

    timestep: int
    """Training timestep at which the network runs."""
    signal: float
    """Weight of the clean chunk before it."""
    noise: float
    """Weight of the noise before it."""
    signal_next: float
    """Weight of the clean chunk after it."""
    noise_next: float
    """Weight of the noise after it."""


def steps(path: Path, alphas: Sequence[float], count: int) -> tuple[Step, ...]:
    """Return `count` steps, equally long to the nearest timestep, the first at the noisiest.

    A diffusion chain has "trailing" spacing (Lin et al. 2024, arXiv 2305.08891, table 2): all its
    steps are as long as the shortest, and the schedule may end above 0. A flow ends at 0.

    Args:
        path: How signal and noise are mixed.
        alphas: Signal power by training timestep.
        count: Number of steps.

    Raises:
        ValueError: more steps than training timesteps, or none.
    """
    whole = len(alphas)
    if not 1 <= count <= whole:
        raise ValueError(f"denoising steps must lie in [1, {whole}], got {count}")
    timesteps = [round(whole - i * whole / count) - 1 for i in range(count + 1)]
    after = timesteps[1:] if path == "flow" else [t - whole // count for t in timesteps[:-1]]
    return tuple(
        Step(t, *_shares(path, alphas[t]), *(_shares(path, alphas[s]) if s >= 0 else (1.0, 0.0)))
        for t, s in zip(timesteps[:-1], after, strict=True)
    )


def step(latent: np.ndarray, clean: np.ndarray, at: Step) -> np.ndarray:
    """Return the next latent f32 [b, k, u] from this one and the predicted clean chunk.

    On a diffusion path this is DDIM with eta = 0 (Song et al. 2021, arXiv 2010.02502, eq. 12), on a
    flow path Euler's step (Liu et al. 2022, arXiv 2209.03003, eq. 1).
    """
    noise = (latent - at.signal * clean) / at.noise
    return (at.signal_next * clean + at.noise_next * noise).astype(np.float32)


def _shares(path: Path, alpha: float) -> tuple[float, float]:
    signal = math.sqrt(alpha)
    return signal, 1 - signal if path == "flow" else math.sqrt(1 - alpha)
