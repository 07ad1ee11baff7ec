"""What the tiny backbone promises beyond what every backbone must."""

from dataclasses import replace

import pytest
import torch

from vla.backbones import tiny

VIEWS, PROPRIO, VOCABULARY = 2, 8, 512


def test_it_stays_within_a_million_weights_with_the_largest_vocabulary() -> None:
    net = tiny.Config().build(VIEWS, PROPRIO, VOCABULARY, memory=128)
    assert sum(p.numel() for p in net.parameters()) <= 1_000_000


def test_a_decision_is_sixteen_perceptual_tokens_and_one_cognitive() -> None:
    net = tiny.Config().build(VIEWS, PROPRIO, VOCABULARY, memory=0)
    assert net.token_shape[0] == 16 + 1
    images = torch.zeros(1, VIEWS, 96, 96, 3, dtype=torch.uint8)
    words = torch.ones(1, 2, dtype=torch.int64)
    before, moved = (
        net.encode(images, torch.full((1, PROPRIO), value), words).tokens for value in (0.0, 1.0)
    )
    assert torch.equal(before[:, :16], moved[:, :16])  # perception does not feel the arm
    assert not torch.equal(before[:, 16:], moved[:, 16:])


def test_an_object_changes_the_token_of_its_corner_most() -> None:
    net = tiny.Config().build(1, PROPRIO, VOCABULARY, memory=0)
    empty = torch.full((1, 1, 96, 96, 3), 128, dtype=torch.uint8)
    seen = empty.clone()
    seen[:, :, 74:90, 6:22] = torch.tensor([250, 10, 10], dtype=torch.uint8)  # bottom left
    words = torch.ones(1, 2, dtype=torch.int64)
    a, b = (net.encode(x, torch.zeros(1, PROPRIO), words).tokens[0, :16] for x in (empty, seen))
    change = (a - b).square().sum(1)
    assert change.argmax() == 12  # row 3 of 4, column 0
    assert change[3] < change[12] / 10  # the opposite corner


@pytest.mark.parametrize("side", [48, 64, 96])
def test_other_image_sizes_can_be_chosen(side: int) -> None:
    net = replace(tiny.Config(), image_px=side).build(VIEWS, PROPRIO, VOCABULARY, memory=0)
    images = torch.zeros(3, VIEWS, 80, 80, 3, dtype=torch.uint8)
    tokens = net.encode(images, torch.zeros(3, PROPRIO), torch.ones(3, 1, dtype=torch.int64)).tokens
    assert tokens.shape == (3, *net.token_shape)
