"""Finds faults of an action chunk that need no knowledge of the arm's state."""

import numpy as np

from robot_bridge.motion.limits import Limits


def chunk_fault(
    limits: Limits, max_age_s: float, times_s: np.ndarray, positions: np.ndarray, age_s: float
) -> tuple[str, str] | None:
    """Return stage and reason of a refusal of targets f64 [k, u]; None if there is no fault.

    A target may be outside its range, where it is cut, but not by more than the range's width.
    """
    if not (np.isfinite(positions).all() and np.isfinite(times_s).all()):
        return "finite", "a chunk has targets or times that are not finite"
    if not -max_age_s <= age_s <= max_age_s:
        return "fresh", f"a chunk of an observation {age_s:.2f} s old, at most {max_age_s}"
    spread = limits.high - limits.low
    far = ((positions < limits.low - spread) | (positions > limits.high + spread)).any(axis=0)
    if far.any():
        return (
            "position",
            f"a target of {limits.names[int(np.argmax(far))]} is far outside its range",
        )
    return None
