"""Small videos of episodes for browsers, encoded on request and cached."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from reward_models.label_report import overlay
from reward_models.label_report.read import Labelled
from vla.utils import video

MAX_CLIPS = 64
"""Size of the cache; the oldest clip is deleted first."""


class Clips:
    """Re-encodes episodes of a labelled data set: browsers do not play its full-chroma videos."""

    def __init__(self, labelled: Labelled) -> None:
        self._labelled = labelled
        self._place = tempfile.TemporaryDirectory(prefix="vla-review-")
        self._made: dict[int, Path] = {}
        self._lock = threading.Lock()  # two requests may be for the same clip

    def clip(self, index: int) -> Path:
        """Return an MP4 of an episode's cameras, side by side, a frame for a frame.

        Raises:
            ValueError: there is no such episode, or its videos cannot be decoded.
        """
        with self._lock:
            if index not in self._made:
                episode = self._labelled.episode(index)
                views = overlay.decode(self._labelled, episode)
                path = Path(self._place.name) / f"{index}.mp4"
                video.encode(_images(views), path, episode.fps)
                self._made[index] = path
            if len(self._made) > MAX_CLIPS:
                oldest = next(iter(self._made))
                self._made.pop(oldest).unlink()
            return self._made[index]

    def close(self) -> None:
        """Delete all clips."""
        self._place.cleanup()


def _images(views: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the views u8 `t v h w 3` of each frame side by side, with even sides."""
    for frame in views:
        row = np.concatenate(list(frame), axis=1)
        row = video.upscale(row) if 2 * len(row) <= overlay.VIEW_PX else row
        odd = [(0, side % 2) for side in row.shape[:2]]
        yield np.pad(row, [*odd, (0, 0)], mode="edge")
