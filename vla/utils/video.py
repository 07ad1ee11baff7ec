"""Writes images as H.264 in MP4, which every browser plays."""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from jaxtyping import UInt8

from vla.contracts.types import Array

SCALE = 2
"""Pixels on the screen per pixel of a camera."""
BACKGROUND, TEXT = (24, 26, 30), (225, 228, 232)


class OutputFile:
    """A file for FFmpeg to write that keeps its first error to itself.

    FFmpeg crashes when it closes a file that it could not write. So it is told that all is well,
    and the error is raised by `check` and `close`.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = path.open("wb", buffering=0)
        self._error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write data, unless a write has failed."""
        rest = memoryview(data)
        try:
            while self._error is None and len(rest):
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            error.filename = self.name
            self._error = error
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place in the file, and return it."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def check(self) -> None:
        """Raise the OSError of the first write that failed, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the file; OSError as `check`."""
        self._file.close()
        self.check()


def encode(
    images: Iterator[UInt8[Array, "h w 3"]], path: Path, hz: float, *, hold_s: float = 0.0
) -> None:
    """Write RGB images of one size with even sides, `hz` a second, as H.264 in MP4, whole or not at
    all; the last one is repeated for `hold_s`.

    Raises:
        ValueError: this PyAV has no H.264 encoder.
        OSError: the disk is full.
    """
    try:
        av.codec.Codec("libx264", "w")
    except av.codec.codec.UnknownCodecError as error:
        raise ValueError(
            "this PyAV cannot encode H.264 (no libx264): install it with pip, or give --videos 0"
        ) from error
    temporary = path.with_name(f".{path.stem}.new{path.suffix}")
    try:
        _encode(images, temporary, hz, round(hold_s * hz))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _encode(images: Iterator[UInt8[Array, "h w 3"]], path: Path, hz: float, repeats: int) -> None:
    output = OutputFile(path)
    # No fragments, whose index is spread over the file: a browser could not seek in them.
    with contextlib.closing(output), av.open(output, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=Fraction(hz).limit_denominator(1000))
        stream.pix_fmt = "yuv420p"  # the only format every browser plays
        stream.options = {"crf": "24", "preset": "veryfast"}
        last: Any = None
        for image in images:
            stream.height, stream.width = image.shape[:2]
            last = av.VideoFrame.from_ndarray(image, format="rgb24")
            file.mux(stream.encode(last))
            output.check()
        for _ in range(repeats if last is not None else 0):
            last.pts = None
            file.mux(stream.encode(last))
        file.mux(stream.encode())


def upscale(image: UInt8[Array, "h w 3"]) -> UInt8[Array, "h2 w2 3"]:
    """Return the image `SCALE` times as large, its pixels left sharp."""
    return image.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
