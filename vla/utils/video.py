"""Writes images as H.264 in MP4, which every browser plays."""

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


def encode(
    images: Iterator[UInt8[Array, "h w 3"]], path: Path, hz: float, *, hold_s: float = 0.0
) -> None:
    """Write RGB images of one size with even sides, `hz` a second, as H.264 in MP4, whole or not at
    all; the last one is repeated for `hold_s`.

    Raises:
        ValueError: this PyAV has no H.264 encoder.
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
    # The index goes first: a page plays the file before it has all of it.
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream("libx264", rate=Fraction(hz).limit_denominator(1000))
        stream.pix_fmt = "yuv420p"  # the only format every browser plays
        stream.options = {"crf": "24", "preset": "veryfast"}
        last: Any = None
        for image in images:
            stream.height, stream.width = image.shape[:2]
            last = av.VideoFrame.from_ndarray(image, format="rgb24")
            file.mux(stream.encode(last))
        for _ in range(repeats if last is not None else 0):
            last.pts = None
            file.mux(stream.encode(last))
        file.mux(stream.encode())


def upscale(image: UInt8[Array, "h w 3"]) -> UInt8[Array, "h2 w2 3"]:
    """Return the image `SCALE` times as large, its pixels left sharp."""
    return image.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
