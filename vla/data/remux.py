"""Video files of one camera; videos are joined packet by packet without encoding again.

A video is joined without encoding if its frames lie on the grid of the data set's rate and it
begins with a key frame; only videos of the same codec, size and parameters share a file.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

from vla.data.episode import VideoSpan
from vla.data.info import FILES_PER_CHUNK, VIDEO
from vla.data.stats import FeatureStats
from vla.data.video_writer import VideoWriter
from vla.utils import files
from vla.utils.video import OutputFile

OFF_GRID = 0.1
"""Largest deviation of a frame from the time grid, in frames, before its video is encoded again."""
FILE_BYTES = 200_000_000
"""Approximate size of a file of joined videos, as in LeRobot."""

TICKS = 512
"""Units of time per frame in written files; leaves room for the order of packets."""
BEFORE = -(2**31)
"""A time before every packet."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """Packet information of a video."""

    kind: tuple[Any, ...]
    """Equal for videos that may share a file."""
    times: np.ndarray
    """f64 `n`, seconds of each frame since the first, in order of time."""
    key_first: bool
    """Whether it can be decoded from its first packet on."""

    def mismatch(self, length: int, fps: int) -> str:
        """Return why `length` frames cannot be joined without encoding, empty if they can."""
        at = self.times * fps
        if not self.key_first:
            return "does not begin with a key frame"
        # Frames after the episode are joined too; the next episode begins after them.
        if len(at) < length or np.abs(at - np.arange(len(at))).max() > OFF_GRID:
            return f"has frames that are not {fps} a second"
        return ""


def read_track(path: Path) -> Track:
    """Read the packet information of a video; ValueError if it is missing or no video."""
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path}: holds no video stream; copy the data set again")
            stream = container.streams.video[0]
            packets = [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.size]
            context = stream.codec_context
            if context is None:
                raise ValueError(f"{path}: its codec is not known; copy the data set again")
            kind = (
                context.name, context.width, context.height, context.pix_fmt,
                bytes(context.extradata or b""),
            )  # fmt: skip
            scale = float(stream.time_base)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: is missing; copy the data set again") from error
    except av.FFmpegError as error:
        raise ValueError(f"{path}: cannot be read ({error}); copy the data set again") from error
    if not packets or any(pts is None for pts, _ in packets):
        raise ValueError(f"{path}: holds no frame with a time; copy the data set again")
    times = np.sort(np.array([pts for pts, _ in packets], np.float64))
    return Track(kind=kind, times=(times - times[0]) * scale, key_first=packets[0][1])


class VideoPlace(NamedTuple):
    """Location of an episode's frames of a camera."""

    chunk: int
    file: int
    """Number of the file within the chunk."""
    begin_s: float
    """Time in the file at which they begin."""


class CameraVideos:
    """The video files of one camera under `root`; an episode is encoded, joined or linked."""

    def __init__(self, root: Path, key: str, fps: int, file_bytes: int = FILE_BYTES) -> None:
        self._root, self._key, self._fps, self._limit = root, key, fps, file_bytes
        self._file = -1
        self._encoder: VideoWriter | None = None
        self._linked: Path | None = None
        self._kind: tuple[Any, ...] | None = None
        self._out: Any = None
        self._joined: Any = None
        self._stream: Any = None
        self._frames = self._bytes = 0
        self._last = BEFORE

    def encode(
        self, frames: Iterable[np.ndarray], shape: Sequence[int], length: int, name: str
    ) -> tuple[VideoPlace, FeatureStats]:
        """Encode and append images; see `VideoWriter.write`."""
        if self._encoder is None or self._encoder.bytes > self._limit:
            self._encoder = VideoWriter(self._next_file(), shape, self._fps)
        begin = self._encoder.frames
        stats = self._encoder.write(frames, length, name)
        return self._place(begin / self._fps), stats

    def join(self, path: Path) -> VideoPlace:
        """Append a video without encoding it."""
        source_track = read_track(path)
        with av.open(str(path)) as source:
            stream = source.streams.video[0]
            if source_track.kind != self._kind or self._bytes > self._limit:
                self._joined = OutputFile(self._next_file())
                self._out = av.open(self._joined, "w", format="mp4")
                self._stream = self._out.add_stream_from_template(stream, opaque=True)
                self._stream.time_base = Fraction(1, self._fps * TICKS)
                self._kind, self._frames, self._bytes = source_track.kind, 0, 0
                self._last = BEFORE
            begin = self._frames
            for packet in self._shifted(source, stream):
                self._bytes += packet.size
                self._out.mux(packet)
            self._joined.check()
        self._frames += len(source_track.times)
        return self._place(begin / self._fps)

    def link(self, span: VideoSpan) -> VideoPlace:
        """Link a file unchanged, for all consecutive episodes in it."""
        if span.path != self._linked:
            files.link(span.path, self._next_file())
            self._linked = span.path
        return self._place(span.begin_s)

    def close(self) -> None:
        """Write the index of the last file."""
        for file in (self._out, self._joined, self._encoder):
            if file is not None:
                file.close()
        self._out = self._joined = self._encoder = self._linked = self._kind = None

    def _next_file(self) -> Path:
        self.close()
        self._file += 1
        chunk, within = divmod(self._file, FILES_PER_CHUNK)
        path = self._root / VIDEO.format(video_key=self._key, chunk_index=chunk, file_index=within)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _place(self, begin_s: float) -> VideoPlace:
        return VideoPlace(*divmod(self._file, FILES_PER_CHUNK), begin_s)

    def _shifted(self, source: Any, stream: Any) -> Iterator[Any]:
        """Yield the packets with their times in ticks, after those of the videos before."""
        packets = [packet for packet in source.demux(stream) if packet.size]
        first = min(packet.pts for packet in packets)
        for packet in packets:
            ticks = [round((t - first) * stream.time_base * self._fps * TICKS)
                     for t in (packet.pts, packet.dts)]  # fmt: skip
            pts, dts = (self._frames * TICKS + t for t in ticks)
            # Frames that are displayed late are stored early, before the end of the previous video.
            self._last = max(dts, self._last + 1)
            packet.time_base = Fraction(1, self._fps * TICKS)
            packet.pts, packet.dts, packet.duration = pts, self._last, TICKS
            packet.stream = self._stream
            yield packet
