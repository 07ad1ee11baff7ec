"""Shapes of progress: distances to shares of a stage; which stages there are belongs to tasks."""

import numpy as np


def share_done(distance: float, start: float) -> float:
    """Return 1 - distance / start, clipped to [0, 1]: the share of a way that lies behind.

    Args:
        distance: What is left, at least 0.
        start: What there was to begin with, in the same unit; above 0.
    """
    return float(np.clip(1.0 - distance / start, 0.0, 1.0))


def staged(shares: tuple[float, ...], weights: tuple[float, ...]) -> float:
    """Return the weighted sum of the shares done of each stage.

    Args:
        shares: Share done of each stage, each in [0, 1].
        weights: Weight of each stage; they add up to at most 1.
    """
    return float(np.dot(shares, weights))
