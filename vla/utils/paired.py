"""Difference in success of two policies on the same episodes."""

from typing import NamedTuple

import numpy as np

Z95 = 1.96


class Difference(NamedTuple):
    """Difference of two success rates with its 95 % interval."""

    value: float
    """Second less first."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""


def difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """Return by how much the share of successes of `second` bool [n] exceeds that of `first`.

    Interval of Agresti and Min 2005 (Statistics in Medicine 24), which adds half an episode to each
    cell: it has a width even where all episodes end alike. The value is the middle of it.
    """
    n = len(first) + 2
    won = float((second & ~first).sum()) + 0.5
    lost = float((first & ~second).sum()) + 0.5
    value = (won - lost) / n
    deviation = float(np.sqrt(won + lost - (won - lost) ** 2 / n) / n)
    return Difference(value, value - Z95 * deviation, value + Z95 * deviation)
