"""Where a backbone looks: queries over feature maps, and the loss that teaches them."""

import numpy as np
import torch

from vla.backbones import tiny
from vla.contracts.referents import HIDDEN
from vla.nn.context import HasAttention, Retrieved
from vla.nn.grounding import grounding_loss
from vla.nn.vision import grid


def test_the_loss_is_least_where_the_thing_is_and_ignores_what_is_hidden() -> None:
    side = 6
    where = torch.tensor([[[[0.5, -1 / 6], [HIDDEN, HIDDEN]]], [[[float("nan")] * 2] * 2]])
    cell = 2 * side + 4
    logits = torch.zeros(2, 1, 3, side * side)
    flat = grounding_loss(logits, where)
    np.testing.assert_allclose(flat.numpy(), [np.log(side * side), 0.0], rtol=1e-5)
    logits[0, 0, 0, cell] = 20.0
    assert grounding_loss(logits, where)[0] < 1e-4
    logits[0, 0, 0, cell], logits[0, 0, 0, cell + 1] = 0.0, 20.0
    assert grounding_loss(logits, where)[0] > 10


def test_cells_and_coordinates_agree() -> None:
    side = 8
    for index, xy in enumerate(grid(side, side)):
        logits = torch.full((1, 1, 1, side * side), -20.0)
        logits[..., index] = 20.0
        assert grounding_loss(logits, xy[None, None, None] * (1 - 1 / side))[0] < 1e-3


def test_the_mean_of_a_perfect_attention_is_the_place_between_the_cells() -> None:
    side = 8
    where = torch.tensor([0.31, -0.77])
    logits = torch.zeros(1, 1, 1, side * side, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.3)
    for _ in range(200):
        optimizer.zero_grad()
        loss = grounding_loss(logits, where[None, None, None])[0]
        loss.backward()
        optimizer.step()
    assert loss < 1e-2
    mean = (logits.softmax(-1) @ grid(side, side))[0, 0, 0] * (1 - 1 / side)
    torch.testing.assert_close(mean.detach(), where, atol=0.01, rtol=0)


def test_queries_learn_to_find_the_named_colour_and_others_are_left_free() -> None:
    generator = torch.Generator().manual_seed(0)
    config = tiny.Config(
        image_px=32, queries=3, blocks=0, channels=16, text_encoder="transformer", text_width=16
    )
    net = config.build(views=1, proprio=2, vocabulary=6, memory=0)
    assert isinstance(net, HasAttention)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    empty = Retrieved(torch.zeros(32, 0, config.token_width), torch.zeros(32, 0))
    losses = []
    for _ in range(120):
        images = torch.full((32, 1, 32, 32, 3), 120, dtype=torch.uint8)
        corner = torch.randint(0, 6, (32, 2, 2), generator=generator) * 4 + 2
        word = torch.randint(0, 2, (32,), generator=generator)
        for row in range(32):
            for colour in (0, 1):
                x, y = corner[row, colour].tolist()
                images[row, 0, y : y + 4, x : x + 4] = 0
                images[row, 0, y : y + 4, x : x + 4, 2 * colour] = 255
        centre = (corner[torch.arange(32), word] + 2.0) / 16 - 1
        tokens = torch.stack([word + 2, torch.full_like(word, 4)], 1)
        cache = net.encode(images, torch.zeros(32, 2), tokens).cache
        context, logits = net.refine_with_attention(cache, empty)
        assert logits is not None
        assert logits.shape == (32, 1, 3, 64)
        assert context.pooled.shape == (32, config.pooled_width)
        loss = grounding_loss(logits, centre[:, None, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
