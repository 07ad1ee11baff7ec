"""What every registered memory must satisfy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fakes import liven_
from vla.contracts import registry
from vla.contracts.protocols import Memory

TOKENS, WIDTH, STEPS = 4, 8, 25
CPU = torch.device("cpu")


@pytest.fixture(params=registry.names("vla.memory"))
def memory(request: pytest.FixtureRequest):
    built = registry.load("vla.memory", request.param).Config().build(TOKENS, WIDTH)
    liven_(built)
    return built.eval()


def draw(seed: int, *shape: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((*shape, TOKENS, WIDTH), np.float32))


def walk(memory, x: Tensor) -> dict[str, Tensor]:
    """Return the state after writing x `b t n d`, one decision every 8 control steps."""
    state = memory.initial(len(x), CPU)
    for t in range(x.shape[1]):
        state = memory.write(state, x[:, t], torch.full((len(x),), 8.0 * t), torch.ones(len(x)))
    return state


def test_an_episode_starts_with_zeros_of_the_announced_shapes(memory) -> None:
    assert isinstance(memory, Memory)
    state, shapes = memory.initial(3, CPU), memory.state_shapes()
    assert {name: tuple(part.shape) for name, part in state.items()} == {
        name: (3, *shape) for name, shape in shapes.items()
    }
    # The policy resets rows to zero, without asking the memory.
    assert not any(part.any() for part in state.values())
    assert all(name.isidentifier() and shape for name, shape in shapes.items())


def test_names_shapes_and_types_stay_the_same_however_much_is_written(memory) -> None:
    state, first = walk(memory, draw(0, 2, STEPS)), memory.initial(2, CPU)
    assert list(state) == list(first)
    for name, part in state.items():
        assert part.shape == first[name].shape
        assert part.dtype == torch.float32
        assert part.isfinite().all()


def test_the_state_stays_float32_where_products_are_not(memory) -> None:
    x = draw(0, 2)
    with torch.autocast("cpu", torch.bfloat16):
        state = memory.write(memory.initial(2, CPU), x.bfloat16(), torch.zeros(2), torch.ones(2))
    assert {part.dtype for part in state.values()} <= {torch.float32}


def test_a_row_that_is_masked_keeps_its_state_as_if_the_decision_had_not_been(memory) -> None:
    before, x = walk(memory, draw(0, 2, 3)), draw(1, 2)
    now, y = torch.full((2,), 24.0), draw(2, 2)
    masked = memory.write(before, x, now, torch.tensor([1.0, 0.0]))
    read = [memory.read(state, y, now + 8) for state in (before, masked)]
    for kept, changed in zip(*read, strict=True):
        torch.testing.assert_close(changed[1], kept[1])
        assert torch.equal(changed[0], kept[0]) is not memory.remembers


@pytest.mark.parametrize("writes", [0, 1, STEPS])
def test_reading_gives_tokens_like_the_present_and_the_announced_vector(memory, writes) -> None:
    state, x = walk(memory, draw(0, 2, writes)), draw(1, 2)
    retrieved = memory.read(state, x, torch.full((2,), 8.0 * writes))
    assert retrieved.tokens.shape == x.shape
    assert retrieved.vector.shape == (2, memory.vector_size)
    assert all(part.isfinite().all() for part in retrieved)


def test_whole_episodes_at_once_read_like_step_by_step(memory) -> None:
    x, now = draw(2, 2, STEPS), 8.0 * torch.arange(STEPS).expand(2, STEPS)
    row, decision = torch.tensor([0, 1, 1]), torch.tensor([0, 11, STEPS - 1])
    at_once = memory.read_episodes(x, now, torch.ones(2, STEPS), row, decision)
    for i, (b, t) in enumerate(zip(row.tolist(), decision.tolist(), strict=True)):
        state = walk(memory, x[b : b + 1, :t])
        stepped = memory.read(state, x[b : b + 1, t], now[b : b + 1, t])
        torch.testing.assert_close(at_once.tokens[i], stepped.tokens[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(at_once.vector[i], stepped.vector[0], atol=1e-5, rtol=1e-4)


def test_rows_are_remembered_alone(memory) -> None:
    x, present = draw(3, 3, STEPS), draw(4, 3)
    now = torch.full((3,), 8.0 * STEPS)
    together = memory.read(walk(memory, x), present, now)
    alone = memory.read(walk(memory, x[1:2]), present[1:2], now[1:2])
    torch.testing.assert_close(together.vector[1:2], alone.vector)
    torch.testing.assert_close(together.tokens[1:2], alone.tokens)


def test_no_memory_is_changed_in_place(memory) -> None:
    state = walk(memory, draw(5, 2, 3))
    before = [part.clone() for part in state.values()]
    memory.write(state, draw(6, 2), torch.full((2,), 24.0), torch.ones(2))
    for part, copy in zip(state.values(), before, strict=True):
        assert torch.equal(part, copy)


def test_what_it_says_of_remembering_is_true(memory) -> None:
    x, now = draw(1, 2), torch.full((2,), 8.0 * STEPS)
    full = memory.read(walk(memory, draw(0, 2, STEPS)), x, now)
    empty = memory.read(memory.initial(2, CPU), x, now)
    same = all(torch.equal(a, b) for a, b in zip(full, empty, strict=True))
    assert same != memory.remembers
