"""Joins MP4 videos packet by packet, so that no picture is encoded twice, where that is possible.

A video is kept as it is if its frames lie on the grid of the data set's rate and it begins with a
key frame; only videos of the same codec, size and parameters share a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from vla.data.plain_writer import FILES_PER_CHUNK, VIDEO

OFF_GRID = 0.1
"""Share of a frame's time by which a frame may be off the grid, before its video is re-encoded."""
FILE_BYTES = 200_000_000
"""About where a file of joined videos ends, as LeRobot's do."""

TICKS = 512
"""Units of time per frame in what is written; room for the order of packets."""
BEFORE = -(2**31)
"""Before every packet."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """What the packets of a video say."""

    kind: tuple[Any, ...]
    """Equal for videos that may share a file."""
    times: np.ndarray
    """f64 `n`, seconds of each frame since the first, in order of time."""
    key_first: bool
    """Whether it can be decoded from its first packet on."""

    def lacks(self, length: int, fps: int) -> str:
        """Return why `length` frames cannot be kept as they are, empty if they can."""
        at = self.times * fps
        if not self.key_first:
            return "does not begin with a key frame"
        # Those after the episode are joined too, and the next one begins where they end.
        if len(at) < length or np.abs(at - np.arange(len(at))).max() > OFF_GRID:
            return f"has frames that are not {fps} a second"
        return ""


def track(path: Path) -> Track:
    """Read what the packets of a video say; nothing is decoded.

    Raises:
        ValueError: the file is missing or no video.
    """
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path}: holds no video stream; copy the data set again")
            stream = container.streams.video[0]
            packets = [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.size]
            context = stream.codec_context
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


class Joiner:
    """Appends videos of one camera to files under `root`, and says where each one is."""

    def __init__(self, root: Path, key: str, fps: int, file_bytes: int = FILE_BYTES) -> None:
        self._root, self._key, self._fps, self._limit = root, key, fps, file_bytes
        self._kind: tuple[Any, ...] | None = None
        self._out: Any = None
        self._stream: Any = None
        self._frames = self._bytes = 0
        self._last = BEFORE
        self.file = -1
        """Number of the file that is written."""

    def add(self, path: Path) -> tuple[int, int, float]:
        """Append a video; return chunk, file and the time in it at which it begins, in seconds."""
        found = track(path)
        with av.open(str(path)) as source:
            stream = source.streams.video[0]
            if found.kind != self._kind or self._bytes > self._limit:
                self._next(found.kind, stream)
            start = self._frames
            for packet in self._shifted(source, stream):
                self._bytes += packet.size
                self._out.mux(packet)
        self._frames += len(found.times)
        chunk, within = divmod(self.file, FILES_PER_CHUNK)
        return chunk, within, start / self._fps

    def close(self) -> None:
        """Write the index of the last file."""
        if self._out is not None:
            self._out.close()
            self._out = None

    def _next(self, kind: tuple[Any, ...], stream: Any) -> None:
        self.close()
        self.file += 1
        self._kind, self._frames, self._bytes, self._last = kind, 0, 0, BEFORE
        chunk, within = divmod(self.file, FILES_PER_CHUNK)
        name = VIDEO.format(video_key=self._key, chunk_index=chunk, file_index=within)
        (self._root / name).parent.mkdir(parents=True, exist_ok=True)
        self._out = av.open(str(self._root / name), "w")
        self._stream = self._out.add_stream_from_template(stream, opaque=True)
        self._stream.time_base = Fraction(1, self._fps * TICKS)

    def _shifted(self, source: Any, stream: Any) -> Iterator[Any]:
        """Yield the packets with their times in ticks, after those of the videos before."""
        packets = [packet for packet in source.demux(stream) if packet.size]
        first = min(packet.pts for packet in packets)
        for packet in packets:
            ticks = [round((t - first) * stream.time_base * self._fps * TICKS)
                     for t in (packet.pts, packet.dts)]  # fmt: skip
            pts, dts = (self._frames * TICKS + t for t in ticks)
            # Frames that are shown late are sent early, before the end of the video before.
            self._last = max(dts, self._last + 1)
            packet.time_base = Fraction(1, self._fps * TICKS)
            packet.pts, packet.dts, packet.duration = pts, self._last, TICKS
            packet.stream = self._stream
            yield packet
