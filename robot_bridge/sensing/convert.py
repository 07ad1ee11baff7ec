"""Converts contents of messages to arrays: joints by name, images, trajectories.

Functions take plain values (lists, bytes, numbers). This module does not import ROS.
"""

import struct
from collections.abc import Sequence

import numpy as np

ENCODINGS = {
    "rgb8": (3, ""), "bgr8": (3, "BGR2RGB"), "8UC3": (3, "BGR2RGB"),
    "rgba8": (4, "RGBA2RGB"), "bgra8": (4, "BGRA2RGB"),
    "mono8": (1, "GRAY2RGB"), "8UC1": (1, "GRAY2RGB"), "mono16": (2, "GRAY2RGB"),
    "uyvy": (2, "YUV2RGB_UYVY"), "yuv422": (2, "YUV2RGB_UYVY"),
    "yuyv": (2, "YUV2RGB_YUY2"), "yuv422_yuy2": (2, "YUV2RGB_YUY2"),
    "bayer_rggb8": (1, "BayerBG2RGB"), "bayer_bggr8": (1, "BayerRG2RGB"),
    "bayer_gbrg8": (1, "BayerGR2RGB"), "bayer_grbg8": (1, "BayerGB2RGB"),
}  # fmt: skip
"""Accepted encodings of images: bytes per pixel, and OpenCV's name for the conversion to RGB.

ROS names a Bayer pattern by its first two pixels in the first two rows, OpenCV by the second and
third pixel of the second row."""
DEPTH = ("16UC1", "32FC1")
"""Encodings of depth images."""


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
    data: bytes | np.ndarray, height: int, width: int, step: int, encoding: str, what: str,
    *, is_bigendian: bool = False,
) -> np.ndarray:  # fmt: skip
    """Return RGB u8 [h, w, 3] of a raw image.

    Args:
        data: Rows of `step` bytes.
        height: Number of rows.
        width: Pixels per row.
        step: Bytes per row, padding included.
        encoding: One of `ENCODINGS`. Of 16 bits the upper 8 are kept.
        what: Name of the camera, for errors.
        is_bigendian: Whether the upper 8 of 16 bits come first.

    Raises:
        ValueError: the encoding, the number of bytes or of pixels is wrong.
    """
    import cv2

    if encoding in DEPTH:
        raise ValueError(
            f"{what}: encoding {encoding!r} is depth, expected a colour image; give the camera's "
            "colour topic"
        )
    if encoding not in ENCODINGS:
        raise ValueError(
            f"{what}: encoding {encoding!r:.20}, expected one of {', '.join(ENCODINGS)}; set the "
            "camera's driver to one of them"
        )
    size, to_rgb = ENCODINGS[encoding]
    rows = np.frombuffer(data, np.uint8)
    if step < size * width or rows.size != height * step or height < 1 or width < 1:
        raise ValueError(
            f"{what}: got {rows.size} bytes for {height} rows of {step}, {width} pixels each, "
            f"expected rows x bytes per row and {size} bytes per pixel; check the camera's driver"
        )
    odd, small = "YUV" in to_rgb and width % 2, "Bayer" in to_rgb and min(height, width) < 3
    if odd or small:
        raise ValueError(
            f"{what}: got {width} x {height} pixels of {encoding}, expected "
            f"{'an even width' if odd else '3 x 3 or more'}; set the camera's driver to that"
        )
    pixels: np.ndarray = rows.reshape(height, step)[:, : size * width]
    pixels = pixels.reshape(height, width, size)
    if encoding == "mono16":
        pixels = pixels[..., [0 if is_bigendian else 1]]
    if not to_rgb:
        return pixels
    return cv2.cvtColor(np.ascontiguousarray(pixels), getattr(cv2, f"COLOR_{to_rgb}"))


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
