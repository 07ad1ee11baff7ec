"""Converts contents of messages to arrays: joints by name, images, trajectories.

Functions take plain values (lists, bytes, numbers). This module does not import ROS.
"""

import struct
from collections.abc import Sequence

import numpy as np

ENCODINGS = ("rgb8", "bgr8")
"""Accepted encodings of images; both have three bytes per pixel."""


def by_name(
    names: Sequence[str], values: Sequence[float], wanted: Sequence[str], what: str
) -> np.ndarray:
    """Return the values f64 [u] of wanted joints, in that order; a message may have more joints.

    `what` names the source of the message in errors.

    Raises:
        ValueError: a joint is missing or named twice, or there are more or fewer values than names.
    """
    if len(names) != len(values):
        raise ValueError(f"{what}: got {len(names)} joint names and {len(values)} values")
    place = {name: i for i, name in enumerate(names)}
    if len(place) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"{what}: joint {twice!r} is named twice")
    missing = [name for name in wanted if name not in place]
    if missing:
        raise ValueError(
            f"{what}: joint {missing[0]!r} is missing; got {', '.join(names) or 'none'}"
        )
    return np.array([values[place[name]] for name in wanted], np.float64)


def trajectory(
    names: Sequence[str], points: Sequence[Sequence[float]], times_s: Sequence[float],
    wanted: Sequence[str], what: str,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return times f64 [k] and positions f64 [k, u] of a trajectory, joints in the wanted order.

    Times are seconds since the trajectory's stamp. A message may not have other joints than the
    wanted ones; `what` names its source in errors.

    Raises:
        ValueError: it is empty, has other joints, or times that do not increase. Positions may be
            NaN: the gate checks them.
    """
    if not points or len(points) != len(times_s):
        raise ValueError(f"{what}: got {len(points)} points and {len(times_s)} times")
    if sorted(names) != sorted(wanted):
        raise ValueError(f"{what}: got joints {', '.join(names)}, expected {', '.join(wanted)}")
    wrong = [len(point) for point in points if len(point) != len(names)]
    if wrong:
        raise ValueError(f"{what}: a point has {wrong[0]} positions for {len(names)} joints")
    times = np.array(times_s, np.float64)
    if not (np.diff(times) > 0).all() or not np.isfinite(times).all():
        raise ValueError(f"{what}: times {times.tolist()} do not increase")
    order = [list(names).index(name) for name in wanted]
    return times, np.array(points, np.float64)[:, order]


def stamp_ns(packed: bytes) -> int:
    """Return the stamp in ns at the front of a serialized message (CDR); 0 if it is empty.

    The second of four header bytes says whether the encoding is little-endian.

    Raises:
        ValueError: it is too short to begin with a header.
    """
    if len(packed) < 12:
        raise ValueError(f"got {len(packed)} bytes, expected a message with a header")
    sec, nanosec = struct.unpack_from("<iI" if packed[1] & 1 else ">iI", packed, 4)
    return sec * 1_000_000_000 + nanosec


def raw_image(
    data: bytes | np.ndarray, height: int, width: int, step: int, encoding: str, what: str
) -> np.ndarray:
    """Return RGB u8 [h, w, 3] of a raw image.

    Args:
        data: Rows of `step` bytes.
        height: Number of rows.
        width: Pixels per row.
        step: Bytes per row, padding included.
        encoding: One of `ENCODINGS`.
        what: Name of the camera, for errors.

    Raises:
        ValueError: the encoding or the number of bytes is wrong.
    """
    if encoding not in ENCODINGS:
        raise ValueError(
            f"{what}: encoding {encoding!r:.20}, expected {' or '.join(ENCODINGS)}; set the "
            "camera's driver to one of them"
        )
    rows = np.frombuffer(data, np.uint8)
    if step < 3 * width or rows.size != height * step or height < 1 or width < 1:
        raise ValueError(
            f"{what}: got {rows.size} bytes for {height} rows of {step}, {width} pixels each"
        )
    pixels = rows.reshape(height, step)[:, : 3 * width].reshape(height, width, 3)
    return pixels[..., ::-1] if encoding == "bgr8" else pixels


def decode(data: np.ndarray, what: str) -> np.ndarray:
    """Return RGB u8 [h, w, 3] of a JPEG or PNG u8 [n].

    Raises:
        ValueError: it is damaged.
    """
    import cv2

    pixels = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if pixels is None:
        raise ValueError(f"{what}: {data.size} bytes that are no image")
    return pixels[..., ::-1]


def center_crop_resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the largest center crop of an image with the shape's aspect ratio, resized to it."""
    import cv2

    h, w = image.shape[:2]
    if (h, w) == (height, width):
        return np.ascontiguousarray(image)
    scale = min(h / height, w / width)
    tall, wide = round(height * scale), round(width * scale)
    top, left = (h - tall) // 2, (w - wide) // 2
    part = np.ascontiguousarray(image[top : top + tall, left : left + wide])
    how = cv2.INTER_AREA if scale >= 1 else cv2.INTER_LINEAR
    return cv2.resize(part, (width, height), interpolation=how)
