"""Pictures as JPEG: close to what was seen, and nothing decoded that is not what was asked for."""

import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest

from deploy.server import jpeg
from deploy.server.client import RemotePolicy
from tests.fakes import PX
from tests.served import given, same, serving


def picture(px=PX):
    """Return RGB u8 [px, px, 3]: slopes of three colours, so that swapped channels show."""
    slope = np.linspace(0, 255, px)
    x, y = np.meshgrid(slope, slope)
    return np.stack([x, y, 255 - x], -1).astype(np.uint8)


def encoded(image, *options):
    return cv2.imencode(".jpg", image, options)[1].tobytes()


GOOD = encoded(picture()[..., ::-1])
START = GOOD.index(b"\xff\xc0")


def headed(marker=0xC0, bits=8, height=PX, width=PX, channels=3):
    """Return a JPEG that says other things in its header than it holds."""
    frame = struct.pack(">BBHBHHB", 0xFF, marker, 8 + 3 * 3, bits, height, width, channels)
    return GOOD[:START] + frame + GOOD[START + len(frame) :]


def decoded(data, px=PX):
    lengths = np.array([[len(data)]], np.int64)
    return jpeg.decode(np.frombuffer(data, np.uint8), lengths, px, px)


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize(("quality", "most", "mean"), [(95, 8, 1.5), (75, 24, 4.0)])
def test_pictures_come_out_close_and_with_their_channels_in_order(progressive, quality, most, mean):
    options = (cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    data = encoded(picture()[..., ::-1], *options)
    apart = np.abs(decoded(data)[0, 0].astype(int) - picture())
    assert apart.max() <= most
    assert apart.mean() <= mean


def test_rows_and_views_come_out_in_order():
    images = np.stack([np.full((PX, PX, 3), 40 * i, np.uint8) for i in range(6)])
    images = images.reshape(3, 2, PX, PX, 3)
    found = jpeg.decode(*jpeg.encode(images, 95), PX, PX)
    assert found.shape == images.shape
    assert np.abs(found.astype(int) - images).max() <= 2
    assert (jpeg.decode(*jpeg.encode(np.zeros_like(images), 50), PX, PX) == 0).all()  # no camera


EXIF = b"\xff\xe1" + struct.pack(">H", 8) + b"Exif\0\0"
WRONG = {
    "65500 x 65500 pixels, expected 32 x 32": headed(height=65500, width=65500),
    "0 x 32 pixels": headed(width=0),
    "32 x 0 pixels": headed(height=0),
    "16 x 16 pixels, expected 32 x 32": encoded(picture(16)),
    "1 channels of 8 bits, expected 3 of 8": encoded(picture()[..., 0]),
    "4 channels of 8": headed(channels=4),
    "3 channels of 12": headed(bits=12),
    "segment 0xc9": headed(marker=0xC9),  # arithmetic coding
    "segment 0xc3": headed(marker=0xC3),  # lossless
    "segment 0xc0": GOOD[:START] + GOOD[START : START + 19] * 2 + GOOD[START + 19 :],
    "segment 0xe1": GOOD[:2] + EXIF + GOOD[2:],
    "header is damaged at byte 2": GOOD[:2] + b"\0" + GOOD[2:],
    "header has no size": GOOD[:START] + GOOD[START + 19 :],
    "header is damaged": GOOD[:START],
    "it is cut off": GOOD[:-100],
    "no JPEG: begins with 8950": cv2.imencode(".png", picture())[1].tobytes(),
    "no JPEG: begins with 00": b"\0",
    "33 scans, at most 32": GOOD[:-2] + b"\xff\xda" * 32 + GOOD[-2:],
    "it is damaged": GOOD[: START + 19] + b"\xff\xda\0\2" + jpeg.EOI,
}


@pytest.mark.parametrize("said", list(WRONG))
def test_what_is_no_picture_of_the_camera_is_refused(said):
    with pytest.raises(ValueError, match="jpeg: image 0: .*; observe again, or send raw") as caught:
        decoded(WRONG[said])
    assert said in str(caught.value)


def test_a_bomb_is_refused_by_its_header_alone(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", None)  # calling it would be a TypeError
    with pytest.raises(ValueError, match="65500 x 65500 pixels"):
        decoded(WRONG["65500 x 65500 pixels, expected 32 x 32"])


def test_lengths_have_to_add_up_and_are_bounded():
    data = np.frombuffer(GOOD * 2, np.uint8)
    half, most = len(GOOD), jpeg.most_bytes(PX, PX)
    for lengths in ([half, half + 1], [half, half - 1], [0, 2 * half], [-1, 2 * half + 1]):
        with pytest.raises(ValueError, match="jpeg_bytes: got lengths of .* that add up"):
            jpeg.decode(data, np.array([lengths], np.int64), PX, PX)
    long = np.zeros(most + 1, np.uint8)
    with pytest.raises(ValueError, match=f"expected 1 to {most}"):
        jpeg.decode(long, np.array([[most + 1]], np.int64), PX, PX)


def smooth(policy, k):
    """Return what `given` does, with pictures such as cameras have: JPEG keeps no noise."""
    obs, _, noise = given(policy, time_s=0.8 * k, seed=k)
    shifted = np.roll(picture(), 3 * k, axis=0)
    return type(obs)(**{**vars(obs), "images": np.stack([shifted, shifted[::-1]])[None]}), noise


def test_decisions_are_those_of_the_decoded_pictures_and_close_to_those_of_raw_ones(policy):
    low, high = np.array(policy.robot.low), np.array(policy.robot.high)
    with serving(policy) as (address, _), RemotePolicy(address, jpeg=95) as remote:
        ours, close, theirs = (policy.initial_state(1) for _ in range(3))
        apart = []
        for k in range(6):
            obs, noise = smooth(policy, k)
            seen = jpeg.decode(*jpeg.encode(obs.images, 95), PX, PX)
            expected = policy.act(type(obs)(**{**vars(obs), "images": seen}), ours, noise)
            raw, close = policy.act(obs, close, noise)
            found = remote.act(obs, theirs, noise)
            same(expected, found)
            apart.append(np.abs(found[0].values - raw.values) / (high - low))
            ours, theirs = expected[1], found[1]
        assert np.mean(apart) <= 0.01
        assert np.max(apart) <= 0.15  # of a policy with random weights, which nothing made robust


def test_a_picture_that_is_refused_is_one_sentence_and_the_next_one_is_decided(policy):
    with serving(policy) as (address, one), RemotePolicy(address, jpeg=95) as remote:
        good = remote.encode
        for said, bad in WRONG.items():
            remote.encode = lambda images, bad=bad: (
                np.frombuffer(bad * 2, np.uint8), np.full((1, 2), len(bad))
            )  # fmt: skip
            with pytest.raises(ValueError, match="refuses: jpeg: image 0:") as caught:
                remote.act(*given(policy))
            assert said in str(caught.value)
        for odd in (np.zeros((2, 2), np.uint8), np.zeros(4, np.float32)):
            remote.encode = lambda images, odd=odd: (odd, np.full((1, 2), 2))
            with pytest.raises(ValueError, match="jpeg: got .* expected uint8 of one axis"):
                remote.act(*given(policy))
        remote.encode = lambda images: (good(images)[0], np.ones((1, 2)))
        with pytest.raises(ValueError, match="jpeg_bytes: got float64"):
            remote.act(*given(policy))
        assert one.health()["decisions"] == 0
        remote.encode = good
        remote.act(*given(policy))


def test_a_quality_is_a_percentage(tmp_path):
    for quality in (-1, 101):
        with pytest.raises(
            ValueError, match=f"jpeg: got {quality}, expected a quality of 1 to 100"
        ):
            RemotePolicy(f"unix:{tmp_path / 'none'}", jpeg=quality)


def test_a_client_of_raw_pictures_needs_numpy_alone():
    code = (
        "import sys\n"
        "for n in ('cv2', 'onnxruntime', 'tokenizers', 'torch', 'PIL'): sys.modules[n] = None\n"
        "import deploy.server.client as client\n"
        "try: client.RemotePolicy('unix:/nowhere', jpeg=90)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install opencv-python-headless, or send raw images, jpeg=0" in done.stdout
