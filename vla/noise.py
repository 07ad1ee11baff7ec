"""The noise that an episode's decisions start from: a function of numbers, the same wherever."""

import numpy as np


def episode_noise(
    seed: int, episode: np.ndarray, decision: np.ndarray, shape: tuple[int, ...], attempt: int = 0
) -> np.ndarray:
    """Return standard normal noise f32 [e, *shape] that follows from (seed, episode, decision), and
    from the attempt if it is one of several.
    """
    more = [attempt] if attempt else []
    rows = [
        np.random.default_rng([seed, 1, int(e), int(d), *more]).standard_normal(shape, np.float32)
        for e, d in zip(episode, decision, strict=True)
    ]
    return np.stack(rows)
