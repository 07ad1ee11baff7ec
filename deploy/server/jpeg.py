"""Images as JPEG between a policy server and its clients; headers are checked before decoding.

An image of another size than the camera's is refused before it is decoded, and so is every kind of
JPEG except 8-bit baseline and progressive ones of three channels.
"""

import cv2
import numpy as np

SOI, SOS, EOI = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
"""Markers: start of image, start of scan, end of image."""
FRAMES = {0xC0: "baseline", 0xC1: "sequential", 0xC2: "progressive"}
"""Markers of the frame headers that are read further."""
TABLES = {0xC4, 0xDB, 0xDD, 0xE0, 0xFE}
"""Other allowed segments: Huffman and quantisation tables, restarts, JFIF, comment."""
SCANS = 32
"""Most scans of an image: each of them passes over all of it."""
SPARE = 4096
"""Bytes that a JPEG may be longer than its pixels."""


def encode(images: np.ndarray, quality: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes u8 [total] and lengths i64 [b, v] of RGB images u8 [b, v, h, w, 3]."""
    encoded = [
        cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))[1]
        for row in images
        for image in row
    ]
    lengths = np.array([len(data) for data in encoded], np.int64)
    return np.concatenate(encoded), lengths.reshape(images.shape[:2])


def most_bytes(height_px: int, width_px: int) -> int:
    """Return the length of the longest JPEG that is read."""
    return 3 * height_px * width_px + SPARE


def decode(data: np.ndarray, lengths: np.ndarray, height_px: int, width_px: int) -> np.ndarray:
    """Return RGB images u8 [b, v, h, w, 3] of bytes u8 [total] and the length of each, i64 [b, v].

    Raises:
        ValueError: lengths do not add up, or an image is too long, damaged, or no JPEG of that
            size.
    """
    most = most_bytes(height_px, width_px)
    if (lengths < 1).any() or (lengths > most).any() or lengths.sum() != data.size:
        raise ValueError(
            f"jpeg_bytes: got lengths of {lengths.min()} to {lengths.max()} for {data.size} bytes, "
            f"expected 1 to {most} that add up to them; send raw images, or JPEG of less quality"
        )
    images = np.empty((lengths.size, height_px, width_px, 3), np.uint8)
    ends = np.cumsum(lengths)
    for i, (begin, end) in enumerate(zip(ends - lengths.reshape(-1), ends, strict=True)):
        try:
            _decode(data[begin:end], images[i])
        except ValueError as error:
            raise ValueError(
                f"jpeg: image {i}: {error}; observe again, or send raw images"
            ) from error
    return images.reshape(*lengths.shape, height_px, width_px, 3)


def _decode(data: np.ndarray, out: np.ndarray) -> None:
    """Decode one image into `out`."""
    raw = data.tobytes()
    got, expected = size(raw), out.shape[:2]
    if got != expected:
        raise ValueError(f"{got[1]} x {got[0]} pixels, expected {expected[1]} x {expected[0]}")
    # libjpeg fills what is cut off with grey, and passes over the image once per scan.
    if not raw.endswith(EOI):
        raise ValueError("it is cut off: no end-of-image marker at its end")
    if raw.count(SOS) > SCANS:
        raise ValueError(f"{raw.count(SOS)} scans, at most {SCANS}")
    try:
        # EXIF does not rotate it.
        image = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ValueError("it is damaged") from error
    if image is None or image.shape != out.shape:
        raise ValueError("it is damaged")
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=out)


def size(data: bytes) -> tuple[int, int]:
    """Return height and width from the header of a JPEG without decoding it.

    Raises:
        ValueError: no JPEG, or one that is not 8-bit baseline or progressive with three channels.
    """
    if not data.startswith(SOI):
        raise ValueError(f"no JPEG: begins with {data[:2].hex()}, expected {SOI.hex()}")
    at, frame = len(SOI), None
    while True:
        # Decoders skip bytes between segments; being stricter, both see the same header.
        if at + 4 > len(data) or data[at] != 0xFF:
            raise ValueError(f"its header is damaged at byte {at}")
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2 or at + 2 + length > len(data):
            raise ValueError(f"its header is damaged at byte {at}")
        if marker == SOS[1]:
            break
        if marker in FRAMES and frame is None:
            frame = _frame(data[at + 4 : at + 2 + length])
        elif marker not in TABLES:
            raise ValueError(
                f"segment {marker:#x} in its header, expected one frame header of a baseline or "
                "progressive JPEG, and tables"
            )
        at += 2 + length
    if frame is None:
        raise ValueError("its header has no size")
    return frame


def _frame(segment: bytes) -> tuple[int, int]:
    """Return height and width: bits u8, height u16, width u16, channels u8, 3 bytes of each."""
    if len(segment) < 6 or segment[0] != 8 or segment[5] != 3 or len(segment) != 15:
        channels = segment[5] if len(segment) > 5 else 0
        raise ValueError(
            f"{channels} channels of {segment[0] if segment else 0} bits, expected 3 of 8"
        )
    return int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
