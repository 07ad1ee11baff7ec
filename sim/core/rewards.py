"""Progress from distances and stages, as array code over n worlds."""

import numpy as np
from jaxtyping import Float64

from vla.contracts.types import Array


def length(offset: Float64[Array, "*n k"]) -> Float64[Array, "*n"]:
    """Return the Euclidean lengths of vectors."""
    return np.sqrt(np.vecdot(offset, offset))


def share_done(
    distance: Float64[Array, "*n"], start: Float64[Array, "*n"] | float
) -> Float64[Array, "*n"]:
    """Return 1 - distance / start, clipped to [0, 1]: the completed share of a distance.

    Args:
        distance: Remaining distance, at least 0.
        start: Initial distance in the same unit, above 0.
    """
    return np.minimum(np.maximum(1.0 - distance / start, 0.0), 1.0)


def staged(
    shares: tuple[Float64[Array, "*n"] | float, ...], weights: tuple[float, ...]
) -> Float64[Array, "*n"]:
    """Return the weighted sum of the shares done of each stage.

    Args:
        shares: Share done of each stage, each in [0, 1]: arrays of one shape, or numbers.
        weights: Weight of each stage; they add up to at most 1.
    """
    table = np.empty((*max(map(np.shape, shares), key=len), len(shares)))
    for stage, share in enumerate(shares):
        table[..., stage] = share
    return np.vecdot(table, weights)
