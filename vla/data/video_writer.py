"""Writes the videos of a data set and their statistics, without LeRobot."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import PictureType

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""What LeRobot calls them, and which they are."""
SAMPLE = 8
"""Every so many-th picture of an episode counts in the statistics."""
# Full chroma because LeRobot's own setting (4:2:0, crf 30) moves the colour of 2 to 5 px objects in
# 96 px frames by 25 to 40 of 255; this one by 2 to 8, and it encodes 3 to 10 times faster.
CODEC = "libx264"
PIXEL_FORMAT = "yuv444p"
# A constant quantiser because rate control remembers: pixels would depend on earlier episodes.
CODEC_OPTIONS = {"qp": "19", "g": "2", "preset": "ultrafast", "threads": "1"}


class VideoWriter:
    """An MP4 of RGB frames u8 `h w 3`: full chroma, every second frame a key frame or more."""

    def __init__(self, path: Path, shape: tuple[int, int, int], fps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w")
        self._stream = self._container.add_stream(CODEC, fps, options=CODEC_OPTIONS)
        self._stream.pix_fmt = PIXEL_FORMAT
        self._stream.height, self._stream.width = shape[:2]
        self._stream.time_base = self._time_base = Fraction(1, fps)
        self.frames = 0
        """Frames written so far."""

    def write(self, frames: Iterable[np.ndarray]) -> None:
        """Append the frames u8 `h w 3` of one episode; no other episode affects its pixels."""
        for step, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if step == 0:
                frame.pict_type = PictureType.I
            frame.pts = self.frames
            frame.time_base = self._time_base
            self._container.mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Write what is still buffered and the index, without which the file cannot be read."""
        self._container.mux(self._stream.encode())
        self._container.close()


def image_statistics(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Return per-channel statistics `[3 1 1]` in [0, 1] over every 8th frame and 4th pixel."""
    return sample_statistics(frames[::SAMPLE])


def sample_statistics(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Return the same over all of the frames, and every 4th pixel."""
    pixels = frames[:, ::4, ::4].reshape(-1, 3) / 255.0
    values = {
        "min": pixels.min(axis=0),
        "max": pixels.max(axis=0),
        "mean": pixels.mean(axis=0),
        "std": pixels.std(axis=0),
        **dict(zip(QUANTILES, np.quantile(pixels, list(QUANTILES.values()), axis=0), strict=True)),
    }
    stats = {name: value.reshape(3, 1, 1) for name, value in values.items()}
    return {**stats, "count": np.array([len(pixels)])}
