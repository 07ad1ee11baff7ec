"""Batches prepared ahead: the same ones in the same order, also after a run was stopped."""

import threading
from itertools import pairwise

import pytest

from training.data.prefetch import Prefetcher


class Count:
    """Items 1, 2, 3, ...; its state is the last one."""

    def __init__(self, last: int = 0, bad: int = 0) -> None:
        self.last, self.bad, self.threads = last, bad, []

    def prepare(self) -> int:
        self.last += 1
        self.threads.append(threading.current_thread().name)
        if self.last == self.bad:
            raise ValueError(f"item {self.last} is damaged")
        return self.last

    def state(self) -> dict[str, int]:
        return {"last": self.last}

    def prefetcher(self) -> Prefetcher[int]:
        return Prefetcher(self.prepare, self.state)


def test_items_come_in_order_and_all_but_the_first_from_the_thread() -> None:
    count = Count()
    ahead = count.prefetcher()
    assert [ahead.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    ahead.drop()
    assert count.last == 6, "one is prepared ahead, and no more"
    assert not count.threads[0].startswith("prefetch")
    assert all(name.startswith("prefetch") for name in count.threads[1:])


def test_a_run_that_goes_on_from_a_saved_state_gets_the_item_that_was_not_taken() -> None:
    ahead = Count().prefetcher()
    states = [ahead.state()]
    for _ in range(4):
        ahead.take()
        states.append(ahead.state())
    assert states == [{"last": n} for n in range(5)]
    for one, then in pairwise(states):
        assert Count(one["last"]).prefetcher().take() == then["last"]


def test_after_drop_the_state_may_be_set_and_counts() -> None:
    count = Count()
    ahead = count.prefetcher()
    ahead.take()
    ahead.drop()
    count.last = 10
    assert ahead.state() == {"last": 10}
    assert ahead.take() == 11


def test_an_error_is_raised_where_its_item_is_taken() -> None:
    ahead = Count(bad=3).prefetcher()
    assert [ahead.take(), ahead.take()] == [1, 2]
    with pytest.raises(ValueError, match="item 3 is damaged"):
        ahead.take()
