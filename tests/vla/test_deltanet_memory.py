"""Fast weights: a key gets its value back, a new one replaces it, nothing grows, and they learn."""

import pytest
import torch

from tests.fakes import liven_
from tests.vla.memories import loss_of_a_cue
from vla.memory import deltanet

TOKENS, WIDTH = 3, 8


def build(**settings) -> deltanet.DeltaNetMemory:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        memory = deltanet.Config(**settings).build(TOKENS, WIDTH)
    liven_(memory)
    return memory


def bare() -> deltanet.DeltaNetMemory:
    """Return a memory that writes the mean token, wholly, and keeps all else."""
    memory = build(heads=1, head_size=WIDTH, writes=1).requires_grad_(requires_grad=False)
    for layer in (memory.key, memory.value):
        torch.nn.init.eye_(layer.weight)
        layer.bias.zero_()
    memory.pool.weight.zero_()
    memory.position.zero_()
    memory.rates.weight.zero_()
    memory.rates.bias[:] = 20.0
    return memory.eval()


def write(memory, state, x):
    return memory.write(state, x.expand(1, TOKENS, WIDTH), torch.zeros(1), torch.ones(1))


def test_a_key_gives_its_value_and_a_second_write_replaces_it() -> None:
    memory = bare()
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, WIDTH, generator=generator)
    state = memory.initial(1, torch.device("cpu"))
    state = write(memory, state, one)
    normed = memory.norm(one)
    key = torch.nn.functional.normalize(normed, dim=-1)
    torch.testing.assert_close(state["fast_weights"][0, 0] @ key, normed)
    state = write(memory, state, other)
    memory.value.bias[:] = 1.0  # the same key has another value from now on
    state = write(memory, state, one)
    torch.testing.assert_close(state["fast_weights"][0, 0] @ key, normed + 1.0)


def test_the_state_stays_bounded() -> None:
    memory = build().requires_grad_(requires_grad=False).eval()
    memory.rates.bias[:] = 20.0  # every write is whole, and nothing fades
    state, generator = memory.initial(1, torch.device("cpu")), torch.Generator().manual_seed(1)
    for _ in range(2000):
        x = torch.randn(1, TOKENS, WIDTH, generator=generator)
        state = memory.write(state, x, torch.zeros(1), torch.ones(1))
    read = memory.read(state, x, torch.zeros(1))
    assert torch.isfinite(read.vector).all()
    assert float(state["fast_weights"].abs().max()) < 100


def test_a_decision_that_does_not_exist_writes_nothing() -> None:
    memory = build()
    state = memory.initial(1, torch.device("cpu"))
    after = memory.write(state, torch.ones(1, TOKENS, WIDTH), torch.zeros(1), torch.zeros(1))
    assert torch.equal(after["fast_weights"], state["fast_weights"])


def test_what_was_seen_once_can_be_learned() -> None:
    assert loss_of_a_cue(build()) < 0.3  # 0.69 is a guess


def test_a_memory_that_writes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="writes"):
        deltanet.Config(writes=0)
