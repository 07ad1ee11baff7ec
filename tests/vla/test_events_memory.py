"""A wait of any length takes one slot of the memory of events, and adds nothing to its sums."""

import pytest
import torch
from torch import Tensor

from tests.fakes import liven_
from tests.vla.memories import episode, loss_of_a_cue, stepped
from vla.memory import events

TOKENS, WIDTH = 3, 8


def build(**settings) -> events.Events:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        memory = events.Config(**{"slots": 8, "heads": 2, **settings}).build(TOKENS, WIDTH)
    liven_(memory)
    return memory.eval()


def runs(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens of events of so many decisions each, times and mask."""
    looks, _ = episode(len(lengths), TOKENS, WIDTH)
    x = looks.repeat_interleave(torch.tensor(lengths), 1)
    return x, 8.0 * torch.arange(x.shape[1])[None], torch.ones(1, x.shape[1])


def state_after(memory: events.Events, *lengths: int) -> dict[str, Tensor]:
    x, now, mask = runs(*lengths)
    state = memory.initial(1, x.device)
    for t in range(x.shape[1]):
        state = memory.write(state, x[:, t], now[:, t], mask[:, t])
    return state


def test_decisions_that_look_alike_share_a_slot() -> None:
    state = state_after(build(), 2, 5, 1, 30)
    assert [int(count) for count in state["slot_count"][0] if count] == [2, 5, 1, 30]
    held = state["slot_tokens"][0][state["slot_count"][0] > 0]
    torch.testing.assert_close(held, runs(1, 1, 1, 1)[0][0])


def test_what_differs_by_less_than_the_threshold_is_alike() -> None:
    x, now, mask = runs(6)
    x = x + 0.01 * episode(6, TOKENS, WIDTH, seed=1)[0]
    for threshold, expected in ((0.0, 6), (0.05, 1)):
        memory = build(merge_threshold=threshold)
        state = memory.initial(1, x.device)
        for t in range(6):
            state = memory.write(state, x[:, t], now[:, t], mask[:, t])
        assert int((state["slot_count"] > 0).sum()) == expected


def test_longer_waits_than_the_longest_duration_read_the_same() -> None:
    memory, now = build(max_duration_decisions=4), torch.zeros(1)
    x = episode(1, TOKENS, WIDTH, seed=2)[0][:, 0]
    short, long, other = (
        memory.read(state_after(memory, 2, wait, 3), x, now) for wait in (4, 200, 3)
    )
    torch.testing.assert_close(short.vector, long.vector, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(short.tokens, long.tokens, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(short.vector, other.vector, atol=1e-3)


def sums_and_order(memory: events.Events, *looks: int) -> tuple[Tensor, Tensor]:
    """Return the sums over slots with such looks, and what tells their order apart, f32 [l, f]."""
    state = memory.initial(1, torch.device("cpu"))
    kinds = episode(4, TOKENS, WIDTH)[0][0]
    for slot, look in enumerate(looks, start=memory.slots - len(looks)):
        state["slot_tokens"][0, slot] = kinds[look]
        state["slot_count"][0, slot] = 2.0
    found = {}
    for name in ("standardize_total", "order"):
        getattr(memory, name).register_forward_pre_hook(
            lambda _, inputs, name=name: found.update({name: inputs[0][0]})
        )
    memory.read(state, kinds[None, 0], torch.zeros(1))
    return found["standardize_total"], found["order"][-len(looks) :]


def test_a_wait_in_more_pieces_changes_neither_sums_nor_order_of_events() -> None:
    memory = build()
    sums, order = sums_and_order(memory, 0, 1, 0, 2)
    more_sums, more_order = sums_and_order(memory, 0, 0, 1, 0, 0, 2, 0)
    torch.testing.assert_close(sums, more_sums)
    before, after = order.unflatten(1, (2, -1, events.LEVELS)).unbind(1)
    more_before, more_after = more_order.unflatten(1, (2, -1, events.LEVELS)).unbind(1)
    for slot, now_at in ((1, 2), (3, 5)):
        torch.testing.assert_close(before[slot, 1:], more_before[now_at, 1:])
        torch.testing.assert_close(after[slot, 1:], more_after[now_at, 1:])
    assert before[3, 1:].sum() > before[1, 1:].sum() == 0
    assert [int(before[slot, 0].sum()) for slot in range(4)] == [0, 1, 2, 3]
    assert [int(after[slot, 0].sum()) for slot in range(4)] == [3, 2, 1, 0]


def test_numbers_are_cut_off() -> None:
    numbers = torch.tensor([0.0, 0.25, 2.0, 3.5, 90.0])[None, :, None]
    expected = [[0, 0, 0], [0.25, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    torch.testing.assert_close(events.thermometer(numbers, 3)[0], torch.tensor(expected))


def test_events_add_up() -> None:
    memory = build()
    one, two, other = (
        sums_and_order(memory, *looks)[0] for looks in ((0, 1), (0, 1, 0, 1), (0, 2))
    )
    torch.testing.assert_close(2 * one, two)
    assert one.abs().max() > 0.01
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("holes", [(), (0,), (2, 3, 9)])
@pytest.mark.parametrize("lengths", [(4, 1, 6, 2), (1,) * 13])
def test_events_read_alike_in_training_also_past_its_capacity(holes, lengths) -> None:
    memory, (x, now, mask) = build(), runs(*lengths)
    mask[0, list(holes)] = 0
    every = torch.arange(x.shape[1])
    at_once = memory.read_episodes(x, now, mask, torch.zeros_like(every), every)
    for t, read in enumerate(stepped(memory, x, now, mask)):
        torch.testing.assert_close(at_once.vector[t], read.vector[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(at_once.tokens[t], read.tokens[0], atol=1e-5, rtol=1e-4)


def test_it_learns_to_tell_a_cue() -> None:
    assert loss_of_a_cue(build()) < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 5}, "memory.slots must be at least recent \\+ 3 = 7, got 5"),
        ({"heads": 3}, "memory.heads must divide the token width 8, got 3"),
        ({"merge_threshold": -1.0}, "merge_threshold: got -1.0, expected at least 0"),
        ({"max_duration_decisions": 0}, "max_duration_decisions: got 0, expected at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)
