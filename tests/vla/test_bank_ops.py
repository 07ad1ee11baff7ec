"""The arithmetic of the slot memory against a memory made of Python lists."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vla.nn import bank_ops
from vla.nn.bank_ops import Slots

SLOTS, RECENT, TOKENS, WIDTH = 8, 3, 4, 6


class ListBank:
    """The reference: a list of (tokens, time, count), merged one pair at a time."""

    def __init__(self, eviction: str) -> None:
        self.eviction = eviction
        self.entries: list[tuple[np.ndarray, float, float]] = []

    def write(self, x: np.ndarray, now: float) -> None:
        self.entries.append((x, now, 1.0))
        if len(self.entries) > SLOTS:
            if self.eviction == "fifo":
                self.entries.pop(0)
            elif self.eviction == "sink":
                self.entries.pop(bank_ops.SINKS)
            elif self.eviction == "even":
                times = [time for _, time, _ in self.entries]
                inner = range(1, len(times) - 1)
                self.entries.pop(min(inner, key=lambda i: times[i + 1] - times[i - 1]))
            else:
                self._merge()

    def _merge(self) -> None:
        pairs = range(len(self.entries) - 1)
        # the oldest entry is an anchor, and the newest RECENT are left alone
        free = [i for i in pairs if i > 0 and i + 1 < len(self.entries) - RECENT]
        j = min(free, key=lambda i: self._cost(i) + 1e-5 * i)
        (a, time_a, n), (b, time_b, m) = self.entries[j : j + 2]
        merged = (n * a + m * b) / (n + m), (n * time_a + m * time_b) / (n + m), n + m
        self.entries[j : j + 2] = [merged]

    def _cost(self, i: int) -> float:
        (a, _, n), (b, _, m) = self.entries[i : i + 2]
        return float(max(np.mean((a - b) ** 2, axis=1)) * n * m / (n + m))


def empty(batch: int) -> Slots:
    return bank_ops.empty(batch, SLOTS, TOKENS, WIDTH, torch.device("cpu"))


def draw(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal((*shape, TOKENS, WIDTH), np.float32))


def put(slots: Slots, x: Tensor, now: float, mask: Tensor | None = None, eviction="ward"):
    batch = len(x)
    mask = torch.ones(batch) if mask is None else mask
    return bank_ops.write(
        slots, x, torch.full((batch,), now), mask, recent=RECENT, eviction=eviction
    )


def filled(slots: Slots, row: int) -> list[tuple[np.ndarray, float, float]]:
    keep = slots.count[row] > 0
    return list(
        zip(
            slots.tokens[row][keep].numpy(),
            slots.time[row][keep].tolist(),
            slots.count[row][keep].tolist(),
            strict=True,
        )
    )


def assert_rows_equal(a: Slots, rows_a: list[int], b: Slots, rows_b: list[int]) -> None:
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left[rows_a], right[rows_b])


@pytest.mark.parametrize("eviction", ["ward", "fifo", "sink", "even"])
def test_thousands_of_writes_with_gaps_agree_with_the_list(eviction: str) -> None:
    rng = np.random.default_rng(0)
    batch, steps = 4, 600
    slots, lists = empty(batch), [ListBank(eviction) for _ in range(batch)]
    merges = 0
    for t in range(steps):
        x = draw(rng, batch)
        mask = torch.from_numpy((rng.random(batch) < 0.8).astype(np.float32))
        slots, _ = put(slots, x, 8.0 * t, mask, eviction)
        for row, reference in enumerate(lists):
            if mask[row]:
                merges += len(reference.entries) == SLOTS
                reference.write(x[row].numpy(), 8.0 * t)
        if t % 50 == 49:
            for row, reference in enumerate(lists):
                got = filled(slots, row)
                assert [e[2] for e in got] == [e[2] for e in reference.entries]
                for (x_a, t_a, _), (x_b, t_b, _) in zip(got, reference.entries, strict=True):
                    np.testing.assert_allclose(x_a, x_b, atol=1e-4)
                    assert t_a == pytest.approx(t_b, rel=1e-5)
    assert merges > 1800


def test_counts_add_up_to_the_writes() -> None:
    rng = np.random.default_rng(1)
    slots, written = empty(3), np.zeros(3)
    for t in range(60):
        mask = torch.from_numpy((rng.random(3) < [0.2, 0.7, 1.0]).astype(np.float32))
        slots, _ = put(slots, draw(rng, 3), 8.0 * t, mask)
        written += mask.numpy()
        np.testing.assert_array_equal(slots.count.sum(1).numpy(), written)


@pytest.mark.parametrize("eviction", ["ward", "fifo", "sink", "even"])
@pytest.mark.parametrize("writes", [0, 3, SLOTS, 30])
def test_a_decision_that_is_not_written_changes_no_entry(eviction: str, writes: int) -> None:
    rng = np.random.default_rng(2)
    slots = empty(2)
    for t in range(writes):
        slots, _ = put(slots, draw(rng, 2), 8.0 * t, eviction=eviction)
    after = slots
    for _ in range(3):
        after, _ = put(after, draw(rng, 2), 400.0, torch.zeros(2), eviction)
    for row in range(2):
        before_entries, after_entries = filled(slots, row), filled(after, row)
        assert len(before_entries) == len(after_entries) == min(writes, SLOTS)
        for (x_a, t_a, n_a), (x_b, t_b, n_b) in zip(before_entries, after_entries, strict=True):
            np.testing.assert_array_equal(x_a, x_b)
            assert (t_a, n_a) == (t_b, n_b)


def test_fifo_is_a_ring_buffer_of_the_last_decisions() -> None:
    rng = np.random.default_rng(3)
    slots, all_x = empty(1), [draw(rng, 1) for _ in range(40)]
    for t, x in enumerate(all_x):
        slots, pair = put(slots, x, float(t), eviction="fifo")
        assert pair.item() == 0
    assert torch.equal(slots.tokens, torch.stack(all_x[-SLOTS:], 1))
    assert slots.time.tolist() == [[float(t) for t in range(40 - SLOTS, 40)]]
    assert slots.count.tolist() == [[1.0] * SLOTS]


def test_rows_neither_see_each_other_nor_depend_on_their_order() -> None:
    rng = np.random.default_rng(4)
    together, alone, shuffled = empty(3), empty(1), empty(3)
    order = [2, 0, 1]
    for t in range(50):
        x = draw(rng, 3)
        together, pair = put(together, x, 8.0 * t)
        alone, pair_alone = put(alone, x[1:2], 8.0 * t)
        shuffled, pair_shuffled = put(shuffled, x[order], 8.0 * t)
        assert pair[1] == pair_alone[0]
        assert torch.equal(pair[order], pair_shuffled)
    assert_rows_equal(together, [1], alone, [0])
    assert_rows_equal(together, order, shuffled, [0, 1, 2])


def test_equal_pairs_merge_oldest_first() -> None:
    slots = empty(2)
    for t in range(SLOTS):
        slots, _ = put(slots, torch.ones(2, TOKENS, WIDTH), float(t))
    # Nine equal entries: pair 0 touches the anchor, so pair 1 is the oldest that may merge.
    for t in range(3):
        slots, pair = put(slots, torch.ones(2, TOKENS, WIDTH), float(SLOTS + t))
        assert pair.tolist() == [1, 1]
    assert slots.count[0].tolist() == [1.0, 4.0] + [1.0] * (SLOTS - 2)
    assert slots.time[0, 1].item() == (1 + 2 + 3 + 4) / 4


def test_the_pair_is_judged_by_its_most_different_token() -> None:
    # Entries 1 and 2 differ by 1 in every token (max 1); 2 and 3 in one token by 1.5 (max 2.25,
    # mean 0.56). A mean over tokens would merge the second pair; Ward's maximum merges the first.
    x = torch.zeros(1, SLOTS + 1, TOKENS, WIDTH)
    x[:, 2:] = 1.0
    x[:, 3:, 0] += 1.5
    x[:, 4] += 50.0  # everything later lies far from its neighbours
    cost = bank_ops.ward_cost(x, torch.ones(1, SLOTS + 1), RECENT)
    assert cost.argmin(1).item() == 1
    # one decision each: 1 * 1 / (1 + 1) of the mean square difference, plus the tie break
    torch.testing.assert_close(cost[0, 1:3], torch.tensor([0.5 + 1e-5, 1.125 + 2e-5]))


def test_a_slot_of_many_decisions_outweighs_a_new_one() -> None:
    x = torch.zeros(1, 2, TOKENS, WIDTH)
    x[:, 1] = 2.0
    left, right = bank_ops.pair_weights(
        torch.tensor([[3.0]]), torch.tensor([[1.0]]), eviction="ward"
    )
    merged = bank_ops.merge(x, torch.tensor([0]), left, right)
    assert torch.equal(merged, torch.full((1, 1, TOKENS, WIDTH), 0.5))  # (3 * 0 + 1 * 2) / 4


def test_first_and_newest_stay_apart_however_alike_they_are_and_large_the_others() -> None:
    rng = np.random.default_rng(5)
    slots = empty(1)
    seen = [torch.zeros(1, TOKENS, WIDTH)] * 2 + [100 * draw(rng, 1) for _ in range(50)]
    seen += [seen[-1]] * RECENT  # the arm stands still: the newest are identical
    for t, x in enumerate(seen):
        slots, _ = put(slots, x, 8.0 * t)
    assert slots.count[0, 0] == 1
    assert slots.count[0, -RECENT:].tolist() == [1.0] * RECENT


@pytest.mark.parametrize("decisions", [9, 29, 100, 777])
def test_even_keeps_the_first_and_the_newest_and_no_gap_of_more_than_three_others(
    decisions: int,
) -> None:
    rng = np.random.default_rng(3)
    slots = empty(1)
    for t in range(decisions):
        slots, _ = put(slots, draw(rng, 1), 8.0 * t, eviction="even")
    times = (slots.time[0] / 8).tolist()
    assert (times[0], times[-1]) == (0, decisions - 1)
    assert slots.count[0].tolist() == [1.0] * SLOTS
    gaps = np.diff(times)[:-1]  # the newest has just come
    assert gaps.max() <= 3 * gaps.min()


@pytest.mark.parametrize("eviction", ["ward", "fifo", "sink", "even"])
def test_mixing_matrices_hold_what_stepping_stores(eviction: str) -> None:
    rng = np.random.default_rng(6)
    batch, steps = 3, 40
    x = draw(rng, batch, steps)
    now = torch.arange(steps).float().expand(batch, steps) * 8
    mask = (torch.arange(steps)[None] < torch.tensor([steps, 17, 5])[:, None]).float()
    plan = bank_ops.mixing(x, now, mask, slots=SLOTS, recent=RECENT, eviction=eviction)
    slots = empty(batch)
    for t in range(steps):
        mixed = torch.einsum("blt,btnd->blnd", plan.share[:, t], x)
        torch.testing.assert_close(mixed, slots.tokens, atol=1e-5, rtol=1e-5)
        assert torch.equal(plan.count[:, t], slots.count)  # the same pairs were merged
        assert torch.equal(plan.time[:, t], slots.time)
        slots, _ = bank_ops.write(
            slots, x[:, t], now[:, t], mask[:, t], recent=RECENT, eviction=eviction
        )
