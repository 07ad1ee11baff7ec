"""Checks a series of commands against the limits, by finite differences as a controller does."""

from typing import NamedTuple

import numpy as np

from robot_bridge.motion.limits import Limits

RATE_HZ = 100.0
"""Default commands of the safety node per second."""
ROUNDING = 1e-6
"""Tolerated excess over a limit: rounding in repeated differences."""


class Audit(NamedTuple):
    """Results of a check."""

    commands: int
    """Number of commands."""
    worst: dict[str, float]
    """Largest share of each limit: 1 is all of it; for position, how far beyond it in its unit."""
    violations: dict[str, int]
    """Commands beyond each."""


def audit(
    series: np.ndarray, commands: np.ndarray, stops: np.ndarray, limits: Limits, tick_s: float
) -> Audit:
    """Return how commands compare with the limits.

    Args:
        series: i64 [n], changes where a series begins anew, from a standstill.
        commands: f64 [n, u], positions.
        stops: bool [n], commands of a stop that a fault or a person demanded, which has limits of
            its own.
        limits: Limits.
        tick_s: What lies between two commands of a series, however late one of them was.
    """
    excess: list[list[np.ndarray]] = [[], [], []]
    for part in np.split(commands, np.flatnonzero(np.diff(series)) + 1):
        path = np.concatenate([np.repeat(part[:1], 3, 0), part])
        for order in range(3):
            path = np.diff(path, axis=0) / tick_s
            excess[order].append(path[-len(part) :])
    beyond = np.maximum(limits.low - commands, commands - limits.high)
    most = {
        name: np.where(stops[:, None], getattr(limits.of_stop, name), getattr(limits, name))
        for name in ("velocity", "acceleration", "jerk")
    }
    shares = {
        name: np.abs(np.concatenate(values)) / most[name]
        for name, values in zip(most, excess, strict=True)
    }
    wrong = ~np.isfinite(commands)
    worst = {"position": float(np.max(beyond, initial=-np.inf))}
    worst |= {name: float(np.max(share, initial=0.0)) for name, share in shares.items()}
    violations = {"finite": int(wrong.sum()), "position": int((beyond > 1e-9).sum())}
    violations |= {name: int((~(s <= 1 + ROUNDING)).sum()) for name, s in shares.items()}
    return Audit(len(commands), worst, violations)
