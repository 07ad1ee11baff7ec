"""Confidence intervals of success rates."""

import math

Z95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson interval of a share (Wilson 1927), 95 % unless `z` says otherwise.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(
            f"need 0 <= successes <= trials and trials > 0, got {successes} of {trials}"
        )
    share, z2 = successes / trials, z**2
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, center - half), min(1.0, center + half)
