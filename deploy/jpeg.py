"""Pictures as JPEG between a policy server and its clients, decoded only if their header is right.

A picture's size stands in its header: one of another size than the camera's is refused before it is
decoded, and so is every kind of JPEG but 8-bit baseline and progressive ones of three channels.
"""

import cv2
import numpy as np

SOI, SOS, EOI = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
"""Markers: a picture begins, one of its scans does, it ends."""
FRAMES = {0xC0: "baseline", 0xC1: "sequential", 0xC2: "progressive"}
"""Markers of the frame headers that are read further."""
TABLES = {0xC4, 0xDB, 0xDD, 0xE0, 0xFE}
"""Segments that may stand beside them: Huffman and quantisation tables, restarts, JFIF, comment."""
SCANS = 32
"""Most scans of a picture: every one of them passes over all of it."""
SPARE = 4096
"""Bytes that a JPEG may be longer than its pixels."""


def encode(images: np.ndarray, quality: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes u8 [total] and lengths i64 [b, v] of RGB pictures u8 [b, v, h, w, 3]."""
    found = [
        cv2.imencode(".jpg", picture[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))[1]
        for row in images
        for picture in row
    ]
    lengths = np.array([len(one) for one in found], np.int64)
    return np.concatenate(found), lengths.reshape(images.shape[:2])


def most_bytes(height_px: int, width_px: int) -> int:
    """Return the length of the longest JPEG that is read."""
    return 3 * height_px * width_px + SPARE


def decode(data: np.ndarray, lengths: np.ndarray, height_px: int, width_px: int) -> np.ndarray:
    """Return RGB pictures u8 [b, v, h, w, 3].

    Args:
        data: u8 [total], one picture after another.
        lengths: i64 [b, v], of each.
        height_px: Of every picture.
        width_px: Of every picture.

    Raises:
        ValueError: lengths do not add up, or a picture is too long, damaged, or no JPEG of that
            size.
    """
    most = most_bytes(height_px, width_px)
    if (lengths < 1).any() or (lengths > most).any() or lengths.sum() != data.size:
        raise ValueError(
            f"jpeg_bytes: got lengths of {lengths.min()} to {lengths.max()} for {data.size} bytes, "
            f"expected 1 to {most} that add up to them; send raw images, or JPEG of less quality"
        )
    found = np.empty((lengths.size, height_px, width_px, 3), np.uint8)
    ends = np.cumsum(lengths)
    for i, (begin, end) in enumerate(zip(ends - lengths.reshape(-1), ends, strict=True)):
        try:
            _decode(data[begin:end], found[i])
        except ValueError as error:
            raise ValueError(
                f"jpeg: picture {i}: {error}; observe anew, or send raw images"
            ) from error
    return found.reshape(*lengths.shape, height_px, width_px, 3)


def _decode(data: np.ndarray, out: np.ndarray) -> None:
    """Decode one picture into `out`."""
    raw = data.tobytes()
    got, expected = size(raw), out.shape[:2]
    if got != expected:
        raise ValueError(f"{got[1]} x {got[0]} pixels, expected {expected[1]} x {expected[0]}")
    # libjpeg would fill up what is cut off with grey, and pass over a picture once per scan.
    if not raw.endswith(EOI):
        raise ValueError("it is cut off: no end-of-image marker at its end")
    if raw.count(SOS) > SCANS:
        raise ValueError(f"{raw.count(SOS)} scans, at most {SCANS}")
    try:
        # As it is: EXIF of a picture does not turn it.
        found = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ValueError("it is damaged") from error
    if found is None or found.shape != out.shape:
        raise ValueError("it is damaged")
    cv2.cvtColor(found, cv2.COLOR_BGR2RGB, dst=out)


def size(data: bytes) -> tuple[int, int]:
    """Return height and width as the header of a JPEG has them, and decode nothing.

    Raises:
        ValueError: no JPEG, or one that is not 8-bit baseline or progressive with three channels.
    """
    if not data.startswith(SOI):
        raise ValueError(f"no JPEG: begins with {data[:2].hex()}, expected {SOI.hex()}")
    at, found = len(SOI), None
    while True:
        # Stricter than decoders, which skip what stands between segments: both then see one header.
        if at + 4 > len(data) or data[at] != 0xFF:
            raise ValueError(f"its header is damaged at byte {at}")
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2 or at + 2 + length > len(data):
            raise ValueError(f"its header is damaged at byte {at}")
        if marker == SOS[1]:
            break
        if marker in FRAMES and found is None:
            found = _frame(data[at + 4 : at + 2 + length])
        elif marker not in TABLES:
            raise ValueError(
                f"segment {marker:#x} in its header, expected one frame header of a baseline or "
                "progressive JPEG, and tables"
            )
        at += 2 + length
    if found is None:
        raise ValueError("its header has no size")
    return found


def _frame(segment: bytes) -> tuple[int, int]:
    """Return height and width: bits u8, height u16, width u16, channels u8, 3 bytes of each."""
    if len(segment) < 6 or segment[0] != 8 or segment[5] != 3 or len(segment) != 15:
        channels = segment[5] if len(segment) > 5 else 0
        raise ValueError(
            f"{channels} channels of {segment[0] if segment else 0} bits, expected 3 of 8"
        )
    return int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
