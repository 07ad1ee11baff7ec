"""Augmented images: alike over an episode, different between episodes and cameras."""

import numpy as np
import torch

from training.data.augment import shift_and_brighten

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(60, 190, (6, 2, 24, 24, 3), np.uint8)
ROW = np.array([0, 1, 0, 1, 1, 0])


def augmented(images, **changes):
    settings = {"shift_px": 3, "brightness": 0.2, "rng": np.random.default_rng(1), **changes}
    return shift_and_brighten(images, ROW, **settings)[0]


def test_frames_of_an_episode_move_as_one_and_cameras_by_themselves() -> None:
    same = np.repeat(IMAGES[:1], 6, 0)
    same[:, 1] = same[:, 0]
    found = augmented(same)
    for row in (0, 1):
        members = found[row == ROW]
        assert (members == members[0]).all()
        assert not np.array_equal(members[0, 0], members[0, 1])
    assert not np.array_equal(found[0], found[1])


def test_nothing_is_asked_and_nothing_moves() -> None:
    assert np.array_equal(augmented(IMAGES, shift_px=0, brightness=0.0), IMAGES)


def test_a_shift_moves_the_inside_and_repeats_the_border() -> None:
    found = augmented(IMAGES, brightness=0.0)
    inside = found[0, 0, 8:16, 8:16]
    offsets = [
        (dy, dx) for dy in range(-3, 4) for dx in range(-3, 4)
        if np.array_equal(inside, IMAGES[0, 0, 8 + dy : 16 + dy, 8 + dx : 16 + dx])
    ]  # fmt: skip
    assert len(offsets) == 1


def test_it_tells_how_far_every_view_was_moved() -> None:
    image = np.zeros((1, 2, 24, 24, 3), np.uint8)
    image[:, :, 12, 12] = 255
    found, moved = shift_and_brighten(
        image, np.array([0]), shift_px=3, brightness=0.0, rng=np.random.default_rng(5)
    )
    assert moved.shape == (1, 2, 2)
    assert np.abs(moved).max() > 0
    for view in (0, 1):
        y, x = np.argwhere(found[0, view, :, :, 0])[0]
        assert (x - 12, y - 12) == tuple(moved[0, view])


def test_a_tensor_is_changed_like_an_array() -> None:
    found, moved = shift_and_brighten(
        IMAGES, ROW, shift_px=3, brightness=0.2, rng=np.random.default_rng(5)
    )
    tensor, also = shift_and_brighten(
        torch.from_numpy(IMAGES), ROW, shift_px=3, brightness=0.2, rng=np.random.default_rng(5)
    )
    assert tensor.dtype == torch.uint8
    assert np.abs(tensor.numpy().astype(int) - found).max() <= 1
    assert (tensor.numpy() == found).mean() > 0.99
    assert np.array_equal(moved, also)
