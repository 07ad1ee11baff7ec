"""The full-history memory drops what is older than its window, in training and step by step."""

import pytest
import torch

from tests.fakes import liven_
from tests.vla.memories import episode, stepped
from vla.memory import transformer

TOKENS, WIDTH, KEPT, STEPS = 3, 8, 5, 14


def build(layers: int = 2) -> transformer.TransformerMemory:
    config = transformer.Config(max_decisions=KEPT, layers=layers, hidden_size=16, heads=2)
    memory = config.build(TOKENS, WIDTH)
    liven_(memory)
    return memory.eval()


@pytest.mark.parametrize("holes", [(), (0,), (2, 3, 9)])
def test_longer_episodes_than_the_window_read_alike_in_training(holes) -> None:
    memory, (x, now), mask = build(), episode(STEPS, TOKENS, WIDTH), torch.ones(1, STEPS)
    mask[0, list(holes)] = 0
    every = torch.arange(STEPS)
    at_once = memory.read_episodes(x, now, mask, torch.zeros(STEPS, dtype=torch.int64), every)
    for t, read in enumerate(stepped(memory, x, now, mask)):
        torch.testing.assert_close(at_once.vector[t], read.vector[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(at_once.tokens[t], read.tokens[0], atol=1e-5, rtol=1e-4)


def test_with_one_layer_exactly_the_window_is_seen() -> None:
    memory, (x, now), mask = build(layers=1), episode(STEPS, TOKENS, WIDTH), torch.ones(1, STEPS)
    before = stepped(memory, x, now, mask)
    changed = x.clone()
    changed[0, 4] += 1.0
    after = stepped(memory, changed, now, mask)
    differs = [not torch.equal(a.vector, b.vector) for a, b in zip(before, after, strict=True)]
    # Decision 4 itself, and the five after it.
    assert differs == [4 <= t <= 4 + KEPT for t in range(STEPS)]


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory.heads must divide hidden_size 128, got 3"):
        transformer.Config(heads=3)
