"""The reference of the emulated trajectory controller, all cycles at once.

`controller_replay.reference` goes from cycle to cycle; this takes points of all three orders and
messages that begin before they arrive, and is a hundred times as fast.
"""

from collections.abc import Sequence

import numpy as np

from robot_bridge.motion.spline import Knots


def reference(
    arrivals_s: np.ndarray, stamps_s: np.ndarray, messages: Sequence[Knots], dt_s: float,
    times_s: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return the reference f64 [n, u] at times f64 [n] from the first arrival on.

    Args:
        arrivals_s: f64 [m], in order.
        stamps_s: f64 [m], times of the first points.
        messages: Points, `dt_s` apart.
        dt_s: A tick.
        times_s: Times of the cycles.
    """
    p, v, a = (np.concatenate(column) for column in zip(*messages, strict=True))
    counts = np.array([len(message.positions) for message in messages])
    ends = np.cumsum(counts) - 1
    latest = np.searchsorted(arrivals_s, times_s, side="right") - 1
    elapsed_s = times_s - stamps_s[latest]
    assert min(latest.min(), elapsed_s.min()) >= 0, "a message arrives before it begins"
    at = np.minimum((elapsed_s / dt_s).astype(np.intp), counts[latest] - 1)
    begin = ends[latest] - (counts[latest] - 1) + at
    end = np.minimum(begin + 1, ends[latest])
    t = np.where(begin < end, elapsed_s - at * dt_s, 0.0)[:, None]
    apart, before, after, pull, push = p[end] - p[begin], v[begin], v[end], a[begin], a[end]
    # The polynomial of fifth degree that the two points determine, as the controller's.
    c3 = 10 * apart / dt_s - 6 * before - 4 * after + (push - 3 * pull) * dt_s / 2
    c4 = -15 * apart / dt_s + 8 * before + 7 * after + (1.5 * pull - push) * dt_s
    c5 = 6 * apart / dt_s - 3 * (before + after) + (push - pull) * dt_s / 2
    s = t / dt_s
    path: np.ndarray = p[begin] + t * (before + t * pull / 2 + s**2 * (c3 + s * (c4 + s * c5)))
    return path
