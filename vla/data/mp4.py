"""Checks completeness, frame count and rate of an MP4 file without decoding it.

Reads the top-level boxes only (ISO/IEC 14496-12), to detect truncation.
"""

import struct
from pathlib import Path

import av


def frames_and_rate(path: Path) -> tuple[int, float]:
    """Return the number of video frames of a complete MP4 file and their mean rate in Hz.

    Raises:
        ValueError: the file is missing, empty, truncated or holds no video.
    """
    if not path.is_file():
        raise ValueError(f"{path}: is missing; copy the data set again")
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path}: is empty (0 bytes); copy the data set again or record it again")
    end, kinds = _last_box_end(path, size)
    if end != size or not {b"moov", b"mdat"} <= kinds:
        raise ValueError(
            f"{path}: is truncated ({size} bytes) or no MP4; copy the data set again or record it "
            "again"
        )
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path}: holds no video stream; copy the data set again")
            stream = container.streams.video[0]
            return stream.frames, float(stream.average_rate or 0)
    except av.FFmpegError as error:
        raise ValueError(f"{path}: cannot be read ({error}); copy the data set again") from error


def check_video(file: Path, fps: float, end: int) -> None:
    """Raise ValueError unless a video is complete, has the rate `fps`, and holds `end` frames."""
    frames, hz = frames_and_rate(file)
    if abs(hz / fps - 1) > 0.1:
        raise ValueError(
            f"{file}: has {hz:g} frames/s but meta/info.json says {fps:g}; correct 'fps' there, "
            "or record the data set again"
        )
    if frames < end:
        raise ValueError(
            f"{file}: holds {frames} frames but its episodes need {end}; copy the data set again "
            "or record it again"
        )


def _last_box_end(path: Path, size: int) -> tuple[int, set[bytes]]:
    """Return the declared end of the last top-level box, and the kinds of boxes."""
    at = 0
    kinds: set[bytes] = set()
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            header = file.read(16)
            if len(header) < 8:
                return at + 8, kinds
            length, kind = struct.unpack(">I4s", header[:8])
            if length == 1 and len(header) == 16:  # 64-bit length follows
                length = struct.unpack(">Q", header[8:])[0]
            elif length == 0:  # the box runs to the end of the file
                length = size - at
            if length < 8:
                return -1, kinds
            kinds.add(kind)
            at += length
    return at, kinds
