"""The hierarchical memory reads alike in training and step by step, also past its capacity."""

import pytest
import torch

from tests.fakes import liven_
from tests.vla.memories import episode, stepped
from vla.memory import hcam

TOKENS, WIDTH, STEPS = 3, 8, 17


def build(**settings) -> hcam.HierarchicalMemory:
    sizes = {"chunks": 3, "chunk_decisions": 2, "top_chunks": 2, "hidden_size": 16, "heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        memory = hcam.Config(**{**sizes, **settings}).build(TOKENS, WIDTH)
    liven_(memory)
    return memory.eval()


@pytest.mark.parametrize("holes", [(), (0,), (2, 3, 9), (16,)])
@pytest.mark.parametrize("top", [1, 2, 3])
def test_longer_episodes_than_the_ring_read_alike_in_training(holes, top) -> None:
    memory, (x, now), mask = (
        build(top_chunks=top),
        episode(STEPS, TOKENS, WIDTH),
        torch.ones(1, STEPS),
    )
    mask[0, list(holes)] = 0
    every = torch.arange(STEPS)
    at_once = memory.read_episodes(x, now, mask, torch.zeros(STEPS, dtype=torch.int64), every)
    for t, read in enumerate(stepped(memory, x, now, mask)):
        torch.testing.assert_close(at_once.vector[t], read.vector[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(at_once.tokens[t], read.tokens[0], atol=1e-5, rtol=1e-4)


def test_a_decision_is_known_until_its_chunk_gives_way() -> None:
    memory, (x, now), mask = (
        build(top_chunks=3),
        episode(STEPS, TOKENS, WIDTH),
        torch.ones(1, STEPS),
    )
    before = stepped(memory, x, now, mask)
    changed = x.clone()
    changed[0, 4] += 1.0
    after = stepped(memory, changed, now, mask)
    differs = [not torch.equal(a.vector, b.vector) for a, b in zip(before, after, strict=True)]
    # Chunk 2 holds decisions 4 and 5, and gives way to decision 10.
    assert differs == [4 <= t <= 10 for t in range(STEPS)]


def test_only_the_best_chunks_are_read_and_all_are_compared() -> None:
    memory, (x, now) = build(top_chunks=1, layers=1), episode(STEPS, TOKENS, WIDTH)
    state = memory.initial(1, torch.device("cpu"))
    for t in range(6):
        state = memory.write(state, x[:, t], now[:, t], torch.ones(1))
    # What is found in a chunk counts for its relevance alone; that of the others is only compared.
    layer = memory.layers[0]
    layer.key_value.weight.data.zero_()
    layer.key_value.bias.data.zero_()
    layer.out.bias.data.zero_()
    unread = memory.read(state, x[:, 6], now[:, 6]).vector
    layer.key_value.bias.data[16:] = 1.0  # every entry has the value 1
    read = memory.read(state, x[:, 6], now[:, 6]).vector
    assert not torch.equal(read, unread)
    every = build(top_chunks=3, layers=1)
    every.load_state_dict(memory.state_dict())
    assert not torch.allclose(every.read(state, x[:, 6], now[:, 6]).vector, read)


@pytest.mark.parametrize("top", [1, 3])
def test_the_gradient_reaches_what_was_written_through_relevance_and_content(top) -> None:
    memory, (x, now) = build(top_chunks=top).train(), episode(STEPS, TOKENS, WIDTH)
    x.requires_grad_()
    read = memory.read_episodes(
        x, now, torch.ones(1, STEPS), torch.zeros(2, dtype=torch.int64), torch.tensor([5, 12])
    )
    (read.tokens**2).sum().backward()
    assert x.grad is not None
    assert x.grad[0, :12].abs().max() > 0
    assert x.grad[0, 13:].abs().max() == 0
    layer = memory.layers[0]
    assert layer.summary_query.weight.grad.abs().max() > 0
    assert layer.key_value.weight.grad.abs().max() > 0


def test_more_chunks_to_read_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="memory.top_chunks: got 4, expected at most the 3 chunks"):
        hcam.Config(chunks=3)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory.heads must divide hidden_size 128, got 3"):
        hcam.Config(heads=3)
