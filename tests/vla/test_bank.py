"""The slot memory as a module: reading, learning through writes, and as an ONNX graph."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tests.fakes import liven_
from vla.memory import bank

TOKENS, WIDTH = 5, 8
CONFIG = bank.Config(slots=8, recent=3)


def build(config: bank.Config = CONFIG) -> bank.Bank:
    memory = config.build(TOKENS, WIDTH)
    liven_(memory)
    return memory.eval()


def draw(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal((*shape, TOKENS, WIDTH), np.float32))


State = dict[str, Tensor]


def start(memory: bank.Bank, batch: int) -> State:
    return memory.initial(batch, torch.device("cpu"))


def filled(tokens: Tensor, time: Tensor, count: Tensor) -> State:
    return {"slot_tokens": tokens, "slot_time": time, "slot_count": count}


def times(batch: int, t: int) -> Tensor:
    return torch.full((batch,), 8.0 * t)


def step(memory: bank.Bank, slots: State, x: Tensor, t: int):
    now = times(len(x), t)
    return memory.read(slots, x, now), memory.write(slots, x, now, torch.ones(len(x)))


def test_nothing_stored_reads_finite_and_independent_of_what_empty_slots_hold() -> None:
    rng = np.random.default_rng(0)
    memory = build()
    x = draw(rng, 2)
    clean, dirty = start(memory, 2), start(memory, 2)
    dirty = filled(draw(rng, 2, CONFIG.slots), dirty["slot_time"] + 3, dirty["slot_count"])
    a, b = memory.read(clean, x, times(2, 1)), memory.read(dirty, x, times(2, 1))
    assert all(part.isfinite().all() for part in a)
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left, right)


def test_a_fresh_memory_hands_on_nearly_what_it_sees() -> None:
    rng = np.random.default_rng(1)
    memory = CONFIG.build(TOKENS, WIDTH).eval()
    x = draw(rng, 2)
    slots = start(memory, 2)
    retrieved, slots = step(memory, slots, draw(rng, 2), 0)
    retrieved, _ = step(memory, slots, x, 1)
    # the gate opens at sigmoid(3) = 0.953
    age = torch.log1p(times(2, 1)[:, None] - slots["slot_time"])
    attended = memory.attention(x, slots["slot_tokens"], age, slots["slot_count"])
    torch.testing.assert_close(retrieved.tokens, 0.9526 * x + 0.0474 * attended, atol=1e-3, rtol=0)


def test_only_the_age_of_a_slot_matters_not_the_hour() -> None:
    rng = np.random.default_rng(2)
    memory = build()
    x, contents = draw(rng, 1), draw(rng, 1, CONFIG.slots)
    time, count = torch.arange(CONFIG.slots)[None] * 8.0, torch.ones(1, CONFIG.slots)
    early = memory.read(filled(contents, time, count), x, torch.tensor([100.0]))
    late = memory.read(filled(contents, time + 4000, count), x, torch.tensor([4100.0]))
    older = memory.read(filled(contents, time, count), x, torch.tensor([4100.0]))
    torch.testing.assert_close(early, late)
    assert (early.tokens - older.tokens).abs().max() > 1e-4


def test_a_slot_of_two_decisions_reads_like_two_slots_of_one() -> None:
    rng = np.random.default_rng(3)
    memory = build()
    x, a, b = draw(rng, 1), draw(rng, 1, 1), draw(rng, 1, 1)
    one = filled(torch.cat([a, b], 1), torch.tensor([[4.0, 9.0]]), torch.tensor([[2.0, 1.0]]))
    two = filled(torch.cat([a, a, b], 1), torch.tensor([[4.0, 4.0, 9.0]]), torch.ones(1, 3))
    torch.testing.assert_close(
        memory.read(one, x, torch.tensor([12.0])), memory.read(two, x, torch.tensor([12.0]))
    )


@pytest.mark.parametrize("eviction", ["ward", "fifo", "sink", "even"])
def test_whole_episodes_at_once_read_like_steps_and_like_a_resumed_run(eviction: str) -> None:
    rng = np.random.default_rng(4)
    memory = build(replace(CONFIG, eviction=eviction))
    lengths, steps = [30, 21, 2], 30
    x = draw(rng, 3, steps)
    now = torch.stack([times(3, t) for t in range(steps)], 1)
    mask = (torch.arange(steps)[None] < torch.tensor(lengths)[:, None]).float()
    row = torch.tensor([b for b, n in enumerate(lengths) for _ in range(n)])
    decision = torch.tensor([t for n in lengths for t in range(n)])
    at_once = memory.read_episodes(x, now, mask, row, decision)
    slots, stepped = start(memory, 3), {}
    for t in range(steps):
        if t == 13:  # stop, save, load, go on
            slots = {
                name: torch.from_numpy(part.detach().numpy().copy()) for name, part in slots.items()
            }
        retrieved = memory.read(slots, x[:, t], now[:, t])
        for b in range(3):
            stepped[b, t] = (retrieved.tokens[b], retrieved.vector[b])
        slots = memory.write(slots, x[:, t], now[:, t], mask[:, t])
    for i, (b, t) in enumerate(zip(row.tolist(), decision.tolist(), strict=True)):
        torch.testing.assert_close(at_once.tokens[i], stepped[b, t][0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(at_once.vector[i], stepped[b, t][1], atol=1e-5, rtol=1e-4)


def test_the_gradient_reaches_a_write_twenty_decisions_back_on_both_paths() -> None:
    rng = np.random.default_rng(5)
    memory, steps = build(), 21
    x = draw(rng, 1, steps).requires_grad_()
    now = torch.stack([times(1, t) for t in range(steps)], 1)
    last = torch.tensor([steps - 1])
    at_once = memory.read_episodes(x, now, torch.ones(1, steps), torch.tensor([0]), last)
    (parallel,) = torch.autograd.grad(at_once.vector.square().sum(), x)
    slots = start(memory, 1)
    for t in range(steps):
        retrieved, slots = step(memory, slots, x[:, t], t)
    (sequential,) = torch.autograd.grad(retrieved.vector.square().sum(), x)
    assert (parallel[0].abs().amax((1, 2)) > 1e-8).all()  # every write, the first among them
    torch.testing.assert_close(parallel, sequential, atol=1e-5, rtol=1e-3)


def test_rows_are_read_alone() -> None:
    rng = np.random.default_rng(6)
    memory = build()
    slots = start(memory, 3)
    for t in range(12):
        _, slots = step(memory, slots, draw(rng, 3), t)
    x = draw(rng, 3)
    together = memory.read(slots, x, times(3, 12))
    alone = memory.read({n: part[1:2] for n, part in slots.items()}, x[1:2], times(1, 12))
    torch.testing.assert_close(together.vector[1:2], alone.vector)
    torch.testing.assert_close(together.tokens[1:2], alone.tokens)


def test_a_batch_of_one_can_be_trained_on_and_moves_no_running_figures() -> None:
    rng = np.random.default_rng(8)
    memory = build().train()
    slots, x = start(memory, 1), draw(rng, 1)
    mean = memory.standardize.running_mean.clone()
    alone = memory.read(slots, x, times(1, 0)).vector
    assert torch.equal(memory.standardize.running_mean, mean)
    torch.testing.assert_close(alone, memory.eval().read(slots, x, times(1, 0)).vector)


@pytest.mark.parametrize(
    ("config", "width", "message"),
    [
        (
            bank.Config(slots=6, recent=4),
            8,
            r"memory.slots must be at least recent \+ 3 = 7, got 6",
        ),
        (bank.Config(heads=3), 8, "memory.heads must divide the token width 8, got 3"),
    ],
)
def test_settings_that_cannot_work_are_refused(config, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.build(TOKENS, width)


class _Step(nn.Module):
    """One decision: read, then write."""

    def __init__(self, memory: bank.Bank) -> None:
        super().__init__()
        self.memory = memory

    def forward(
        self, tokens: Tensor, time: Tensor, count: Tensor, x: Tensor, now: Tensor, mask: Tensor
    ) -> tuple[Tensor, ...]:
        slots = filled(tokens, time, count)
        retrieved = self.memory.read(slots, x, now)
        return *retrieved, *self.memory.write(slots, x, now, mask).values()


@pytest.mark.parametrize("time", ["age", "order"])
def test_a_step_exports_without_scatter_gather_or_loop_and_onnx_runtime_follows(
    tmp_path, time
) -> None:
    rng = np.random.default_rng(7)
    memory = build(replace(CONFIG, time=time))
    slots, path = start(memory, 1), tmp_path / "step.onnx"
    names = ["tokens", "time", "count", "x", "now", "mask"]
    example = (*slots.values(), draw(rng, 1), times(1, 0), torch.ones(1))
    module = _Step(memory).eval()
    torch.onnx.export(module, example, path, input_names=names, dynamo=True, verbose=False)
    ops = {node.op_type for node in onnx.load(path).graph.node}
    banned = ("Scatter", "Gather", "Loop", "If", "Scan", "NonZero", "Sequence", "OneHot")
    assert not [op for op in ops if op.startswith(banned)]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    state = [part.numpy() for part in slots.values()]
    for t in range(60):
        x, mask = draw(rng, 1), torch.tensor([float(t % 5 != 4)])
        feed = [*state, x.numpy(), times(1, t).numpy(), mask.numpy()]
        got = session.run(None, dict(zip(names, feed, strict=True)))
        with torch.no_grad():
            expected = module(*slots.values(), x, times(1, t), mask)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b.numpy(), atol=1e-5)
        np.testing.assert_array_equal(got[4], expected[4].numpy())  # counts: the same merges
        slots, state = filled(*expected[2:]), got[2:]


def test_order_alone_reads_the_same_whenever_the_slots_were_written() -> None:
    memory = build(bank.Config(slots=8, recent=2, time="order"))
    x, rows = draw(np.random.default_rng(0), 5, 1), torch.ones(1)
    state = start(memory, 1)
    for t in range(4):
        state = memory.write(state, x[t], 8.0 * t * rows, rows)
    soon, late = (memory.read(state, x[4], now * rows).vector for now in (32.0, 1032.0))
    assert torch.equal(soon, late)
    turned = {name: part.flip(1) for name, part in state.items()}
    assert not torch.allclose(memory.read(turned, x[4], 32.0 * rows).vector, soon)
