"""Fast and forgetful memory: traces fade as their rates say, hold what was seen, and learn."""

import pytest
import torch

from tests.fakes import liven_
from tests.vla.memories import loss_of_a_cue
from vla.memory import ffm

TOKENS, WIDTH = 3, 8


def build(**settings) -> ffm.FastForgetfulMemory:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        memory = ffm.Config(**settings).build(TOKENS, WIDTH)
    liven_(memory)
    return memory


@torch.no_grad()
def test_a_trace_fades_by_its_own_rate_and_turns_by_its_own_frequency() -> None:
    memory = ffm.Config(traces=2, frequencies=2, longest_decisions=16).build(TOKENS, WIDTH).eval()
    state = memory.initial(1, torch.device("cpu"))
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    state = memory.write(state, x, torch.zeros(1), torch.ones(1))
    first = torch.complex(state["traces_real"], state["traces_imaginary"])
    memory.input.weight.zero_()
    memory.input.bias.zero_()  # nothing is added from now on
    for t in range(1, 17):
        state = memory.write(state, x, torch.full((1,), 8.0 * t), torch.ones(1))
    left = torch.complex(state["traces_real"], state["traces_imaginary"]) / first
    torch.testing.assert_close(left[0].abs()[1], torch.full((2,), 0.01), rtol=1e-3, atol=0)
    assert float(left[0].abs()[0].max()) < 1e-6  # 0.01 each decision
    slowest = torch.exp(torch.tensor(1j * torch.pi))
    torch.testing.assert_close(left[0, 1, 1] / left[0, 1, 1].abs(), slowest, rtol=0, atol=1e-4)


def test_the_state_stays_bounded_even_after_wild_training() -> None:
    memory = build(traces=4).requires_grad_(requires_grad=False)
    memory.log_decay.fill_(-20.0)  # nothing fades in float32
    state, generator = memory.initial(1, torch.device("cpu")), torch.Generator().manual_seed(1)
    for t in range(2000):
        x = torch.randn(1, TOKENS, WIDTH, generator=generator)
        state = memory.write(state, x, torch.full((1,), 8.0 * t), torch.ones(1))
    read = memory.eval().read(state, x, torch.zeros(1))
    assert torch.isfinite(read.vector).all()
    assert float(read.tokens.abs().max()) < 100


def test_what_was_seen_once_can_be_learned() -> None:
    assert loss_of_a_cue(build()) < 0.3  # 0.69 is a guess


def test_a_memory_of_one_decision_is_refused() -> None:
    with pytest.raises(ValueError, match="longest_decisions"):
        ffm.Config(longest_decisions=1)
