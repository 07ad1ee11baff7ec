"""Finds jumps of one clock by another. This module does not import ROS."""

from robot_bridge.safety.gate_config import DRIFT


class ClockSkew:
    """How far the clock of stamps is ahead of the monotonic one; it may drift by `DRIFT`."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        """Time of the last comparison, and lead in s without drift."""

    def begin(self, now_s: float, stamps_s: float) -> None:
        """Take the two times, whatever was before."""
        self._last = (now_s, stamps_s - now_s)

    def jumped(self, now_s: float, stamps_s: float, most_s: float) -> bool:
        """Return whether the stamps are further from their drifting clock than `most_s`."""
        if self._last is None:
            self.begin(now_s, stamps_s)
            return False
        (before_s, expected_s), skew_s = self._last, stamps_s - now_s
        drift_s = DRIFT * (now_s - before_s)
        expected_s = min(max(skew_s, expected_s - drift_s), expected_s + drift_s)
        self._last = (now_s, expected_s)
        if abs(skew_s - expected_s) <= most_s:
            return False
        self._last = (now_s, skew_s)
        return True
