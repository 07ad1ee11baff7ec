"""Noise of an episode's decisions: a function of seed and indices, equal on every machine."""

import numpy as np


def episode_noise(
    seed: int, episode: np.ndarray, decision: np.ndarray, shape: tuple[int, ...], attempt: int = 0
) -> np.ndarray:
    """Return standard normal noise f32 [e, *shape], a function of (seed, episode, decision), and
    of the attempt if there are several.
    """
    more = [attempt] if attempt else []
    rows = [
        np.random.default_rng([seed, 1, int(e), int(d), *more]).standard_normal(shape, np.float32)
        for e, d in zip(episode, decision, strict=True)
    ]
    return np.stack(rows)
