"""Writes the videos of a data set and their statistics, without LeRobot."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import PictureType

from vla.data.stats import SAMPLE, THIN, FeatureStats, image_stats
from vla.utils.video import OutputFile

# Full chroma: LeRobot's setting \(4:2:0, crf 30\) changes the colour of 2 to 5 px objects in 96 px
# frames by 25 to 40 of 255, this setting by 2 to 8, and it encodes 3 to 10 times faster.
CODEC = "libx264"
PIXEL_FORMAT = "yuv444p"
# Constant quantizer: with rate control, pixels would depend on earlier episodes.
CODEC_OPTIONS = {"qp": "19", "g": "2", "preset": "ultrafast", "threads": "1"}


class VideoWriter:
    """An MP4 of RGB frames u8 `h w 3`: full chroma, at least every second frame a key frame."""

    def __init__(self, path: Path, shape: Sequence[int], fps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = OutputFile(path)
        self._container = av.open(self._file, "w", format="mp4")
        self._stream = self._container.add_stream(CODEC, fps, options=CODEC_OPTIONS)
        self._stream.pix_fmt = PIXEL_FORMAT
        self._stream.height, self._stream.width = shape[:2]
        self._stream.time_base = self._time_base = Fraction(1, fps)
        self._shape = tuple(shape)
        self.frames = 0
        """Frames written so far."""
        self.bytes = 0
        """Bytes of encoded frames so far."""

    def write(self, frames: Iterable[np.ndarray], length: int, name: str) -> FeatureStats:
        """Append one episode of `length` frames RGB u8 `h w 3` of the video's size, and return the
        statistics of its images; no other episode affects its pixels.

        Raises:
            ValueError: an image has another size, or there are more or fewer; names `name`.
            OSError: the disk is full.
        """
        sample, count = [], 0
        for pixels in frames:
            if pixels.shape != self._shape:
                raise ValueError(f"{name}: image {count} is {pixels.shape}, expected {self._shape}")
            if count % SAMPLE == 0:
                sample.append(pixels[::THIN, ::THIN].copy())
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if count == 0:
                frame.pict_type = PictureType.I
            frame.pts = self.frames
            frame.time_base = self._time_base
            for packet in self._stream.encode(frame):
                self.bytes += packet.size
                self._container.mux(packet)
            self._file.check()
            self.frames += 1
            count += 1
        if count != length:
            raise ValueError(f"{name}: has {count} images for {length} frames")
        return image_stats(np.stack(sample))

    def close(self) -> None:
        """Write buffered frames and the index, without which the file is unreadable.

        Raises:
            OSError: the disk is full.
        """
        self._container.mux(self._stream.encode())
        self._container.close()
        self._file.close()
