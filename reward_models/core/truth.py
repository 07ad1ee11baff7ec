"""Definitions of regress, partial success and earlier frames, for training and tests."""

import numpy as np

DEAD_BAND = 0.05
"""A change of progress of less than this is stagnation."""
PARTIAL = 0.3
"""Final progress from which an episode that failed is a partial success."""
SLACK = 1e-6
"""Rounding: progress is f32, frame times are multiples of 1 / fps."""


def trend_of(change: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2 for regress, stagnation, progress of changes of true progress, i64 [n]."""
    return 1 + np.sign(change).astype(np.int64) * (np.abs(change) > DEAD_BAND + SLACK)


def level_of(success: np.ndarray, progress: np.ndarray) -> np.ndarray:
    """Return how episodes ended, i64 [n]: 2 success, 1 partial success, 0 failure.

    Success bool [n] and true progress [n] are those at the end.
    """
    return np.where(success, 2, (progress >= PARTIAL - SLACK).astype(np.int64))


def frame_at_lag(episode: np.ndarray, time_s: np.ndarray, lag_s: float) -> np.ndarray:
    """Return, for each frame, the newest of its episode at least `lag_s` earlier, or its first.

    Episodes i64 [f] are sorted, times f64 [f] rise within an episode, and the lag is 0 or more.
    """
    # One sorted key: episodes are further apart than any lag or episode is long.
    distance = time_s.max(initial=0.0) + lag_s + 1.0
    key = episode * distance + time_s
    newest = np.searchsorted(key, key - lag_s + SLACK, side="right") - 1
    return np.maximum(newest, np.searchsorted(episode, episode))
