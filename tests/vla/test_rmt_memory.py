"""The recurrent transformer memory: its state is bounded, masked writes leave it, and it learns."""

import pytest
import torch

from tests.fakes import liven_
from tests.vla.memories import loss_of_a_cue
from vla.memory import rmt

TOKENS, WIDTH = 3, 8


def build() -> rmt.RecurrentTransformerMemory:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        memory = rmt.Config(memory_tokens=2, heads=2).build(TOKENS, WIDTH)
    liven_(memory)
    return memory


def test_a_masked_write_leaves_the_memory_and_any_other_changes_all_of_it() -> None:
    memory, x, now = build().eval(), torch.randn(2, TOKENS, WIDTH), torch.zeros(2)
    state = memory.initial(2, torch.device("cpu"))
    after = memory.write(state, x, now, torch.tensor([1.0, 0.0]))["memory_tokens"]
    assert (after[0] != 0).all()
    assert torch.equal(after[1], state["memory_tokens"][1])


def test_the_state_stays_bounded_in_an_endless_episode() -> None:
    memory, state = build().eval(), build().initial(1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    sizes = []
    with torch.no_grad():
        for t in range(300):
            x = torch.randn(1, TOKENS, WIDTH, generator=generator)
            state = memory.write(state, x, torch.full((1,), 8.0 * t), torch.ones(1))
            sizes.append(float(state["memory_tokens"].abs().max()))
    assert max(sizes[100:]) < 2 * max(sizes[:100])


def test_what_was_seen_once_can_be_learned_through_every_write() -> None:
    assert loss_of_a_cue(build()) < 0.3  # 0.69 is a guess


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory.heads must divide the token width 8, got 3"):
        rmt.Config(heads=3).build(TOKENS, WIDTH)
