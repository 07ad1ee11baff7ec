"""Raw images of every accepted encoding come out in the right colours, or are refused."""

import numpy as np
import pytest

from robot_bridge.sensing import convert

HEIGHT, WIDTH, PADDING = 24, 32, 5
Y, X = np.mgrid[:HEIGHT, :WIDTH]
RGB = np.stack([40 + 5 * X, 220 - 8 * Y, 60 + 2 * X + 3 * Y], axis=-1).astype(np.uint8)
"""Three channels that differ and change slowly, as halved colour resolution must not matter."""
GREY = RGB[..., :1]
ALPHA = np.full_like(GREY, 7)
BAYER = {"r": 0, "g": 1, "b": 2}


def yuv(order):
    """Return u8 [h, 2 w] of BT.601, with one U and V for two pixels."""
    r, g, b = np.moveaxis(RGB.astype(np.float64) / 255, -1, 0)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = (128 + 112 * (c - luma) / (1 - w) for c, w in ((b, 0.114), (r, 0.299)))
    planes = {"y": 16 + 219 * luma, "u": u, "v": v}
    packed = np.empty((HEIGHT, 2 * WIDTH), np.uint8)
    for i, name in enumerate(order):
        packed[:, i::4] = np.rint(planes[name][:, order[:i].count(name) :: 2])
    return packed


def mosaic(pattern):
    """Return u8 [h, w]: of every pixel the one channel that its place in the pattern names."""
    flat = np.empty((HEIGHT, WIDTH), np.uint8)
    for i, name in enumerate(pattern):
        place = slice(i // 2, None, 2), slice(i % 2, None, 2)
        flat[place] = RGB[..., BAYER[name]][place]
    return flat


def wide(grey, kind):
    return (grey.astype(np.uint16) * 256 + 200).astype(kind).view(np.uint8)


ENCODED = {
    "rgb8": RGB, "bgr8": RGB[..., ::-1], "8UC3": RGB[..., ::-1],
    "rgba8": np.concatenate([RGB, ALPHA], -1),
    "bgra8": np.concatenate([RGB[..., ::-1], ALPHA], -1),
    "mono8": GREY, "8UC1": GREY, "mono16": wide(GREY, "<u2"),
    "uyvy": yuv("uyvy"), "yuv422": yuv("uyvy"), "yuyv": yuv("yuyv"), "yuv422_yuy2": yuv("yuyv"),
    **{f"bayer_{name}8": mosaic(name) for name in ("rggb", "bggr", "gbrg", "grbg")},
}  # fmt: skip


def padded(encoded, padding=PADDING):
    """Return the bytes of an image with rows that end in noise, and the bytes per row."""
    rows = encoded.reshape(HEIGHT, -1)
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, padding), np.uint8)
    rows = np.concatenate([rows, noise], axis=1)
    return rows.tobytes(), rows.shape[1]


def test_every_encoding_is_tried():
    assert set(ENCODED) == set(convert.ENCODINGS)


@pytest.mark.parametrize("padding", [0, PADDING])
@pytest.mark.parametrize("encoding", ENCODED)
def test_an_image_comes_back_in_its_colours(encoding, padding):
    data, step = padded(ENCODED[encoding], padding)
    image = convert.raw_image(data, HEIGHT, WIDTH, step, encoding, "camera front")
    assert (image.shape, image.dtype) == (RGB.shape, np.uint8)
    grey = encoding in ("mono8", "8UC1", "mono16")
    apart = np.abs(image.astype(int) - (GREY if grey else RGB))
    if encoding.startswith("bayer"):  # the outermost pixels are copies of their neighbours
        assert apart.max() <= 10
        apart = apart[1:-1, 1:-1]
    exact = not encoding.startswith(("bayer", "yu", "uy"))
    assert apart.max() <= (0 if exact else 5)


def test_the_upper_byte_of_16_bits_is_where_the_message_says():
    data, step = padded(wide(GREY, ">u2"))
    image = convert.raw_image(data, HEIGHT, WIDTH, step, "mono16", "front", is_bigendian=True)
    np.testing.assert_array_equal(image, np.broadcast_to(GREY, RGB.shape))
    assert (convert.raw_image(data, HEIGHT, WIDTH, step, "mono16", "front") == 200).all()


@pytest.mark.parametrize("encoding", convert.DEPTH)
def test_depth_is_no_colour(encoding):
    with pytest.raises(ValueError, match=f"^front: encoding '{encoding}' is depth, expected a col"):
        convert.raw_image(bytes(16), 2, 2, 8, encoding, "front")


def test_an_unknown_encoding_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"^front: encoding 'nv21', expected one of rgb8, bgr8, "):
        convert.raw_image(bytes(12), 2, 2, 6, "nv21", "front")


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize(
    ("count", "height", "width", "step"),
    [
        (-1, HEIGHT, WIDTH, 0), (1, HEIGHT, WIDTH, 0), (0, HEIGHT - 1, WIDTH, 0),
        (0, HEIGHT, WIDTH + 8, 0), (0, 2 * HEIGHT, WIDTH, 0), (0, HEIGHT, 2**32 - 1, 0),
        (0, HEIGHT, WIDTH, -1), (0, HEIGHT, 0, 0), (None, 0, WIDTH, 0),
    ],
)  # fmt: skip
def test_bytes_that_are_not_those_of_the_size_are_refused(encoding, count, height, width, step):
    data, per_row = padded(ENCODED[encoding])
    data = b"" if count is None else (data + bytes(1))[: len(data) + count]
    words = rf"^front: got {len(data)} bytes for {height} rows of {per_row + step}, {width} pixels"
    with pytest.raises(ValueError, match=words):
        convert.raw_image(data, height, width, per_row + step, encoding, "front")


def test_colours_of_pairs_need_pairs_and_mosaics_neighbours():
    with pytest.raises(ValueError, match="^front: got 3 x 2 pixels of uyvy, expected an even wid"):
        convert.raw_image(bytes(12), 2, 3, 6, "uyvy", "front")
    with pytest.raises(ValueError, match="^front: got 3 x 2 pixels of bayer_rggb8, expected 3 x 3"):
        convert.raw_image(bytes(6), 2, 3, 3, "bayer_rggb8", "front")
