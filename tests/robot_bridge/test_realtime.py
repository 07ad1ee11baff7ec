"""Deadlines, things that come round, late lines and the outbox."""

import threading
import time

import numpy as np
import pytest

from robot_bridge.sim_arm.realtime_clock import LinkModel, Outbox, PeriodicTimer, TickDeadlines


def test_a_tick_that_is_a_little_late_moves_no_deadline():
    pace = TickDeadlines(0.01, 5.0)
    assert pace.deadline_s == 5.0
    assert pace.tick(5.02) == pytest.approx(0.02)
    assert pace.deadline_s == pytest.approx(5.01)
    assert pace.overruns == 0


def test_a_stall_moves_the_deadlines_instead_of_a_burst():
    pace = TickDeadlines(0.01, 5.0)
    assert pace.tick(5.5) == pytest.approx(0.5)
    assert pace.deadline_s == pytest.approx(5.51)
    assert pace.overruns == 1


def test_moments_between_ticks_have_their_share():
    pace = TickDeadlines(0.01, 5.0)
    assert pace.ticks_at(5.025) == pytest.approx(2.5)


@pytest.mark.parametrize(("hz", "expected"), [(100, 300), (30, 90), (7, 21)])
def test_what_comes_round_does_so_as_often_as_it_says(hz, expected):
    every = PeriodicTimer(1 / hz, 0.005)
    assert sum(every.poll(0.01 * i) for i in range(300)) == pytest.approx(expected, abs=1)


def test_what_comes_round_makes_up_for_nothing_and_can_be_asked_for():
    every = PeriodicTimer(0.1, 0.005)
    assert every.poll(0.0)
    assert every.poll(1.0)
    assert not every.poll(1.05)
    every.restart(1.05)
    assert every.poll(1.05)


def test_a_late_line_keeps_the_order():
    line, rng = LinkModel(latency_s=0.1, jitter_s=0.5), np.random.default_rng(0)
    due_s = [0.0]
    for i in range(200):
        due_s.append(line.arrival_s(rng, 0.01 * i, due_s[-1]))
    late_s = np.array(due_s[1:]) - 0.01 * np.arange(200)
    assert (np.diff(due_s) >= 0).all()
    assert late_s.min() >= 0.1
    assert 0.5 < late_s.max() <= 0.6 + 1e-9


def test_a_line_loses_the_share_it_says():
    line, rng = LinkModel(drop=0.3), np.random.default_rng(0)
    lost = sum(line.arrival_s(rng, 0.0, 0.0) is None for _ in range(2000))
    assert 540 <= lost <= 660  # 600 +- 3 standard deviations of 20


@pytest.mark.parametrize("name", ["latency_s", "jitter_s", "drop"])
@pytest.mark.parametrize("value", [-0.1, 11.0, float("nan")])
def test_a_line_refuses_what_makes_no_sense(name, value):
    with pytest.raises(ValueError, match=f"{name}: got {value}, expected 0 to"):
        LinkModel(**{name: value})


def test_the_outbox_does_things_in_the_order_of_their_times():
    outbox, done, all_done = Outbox(), [], threading.Event()
    now_s = time.monotonic()

    def do(name):
        done.append((name, time.monotonic() - now_s))
        if len(done) == 3:
            all_done.set()

    for name, late_s in (("last", 0.2), ("first", 0.0), ("second", 0.0)):
        outbox.put(now_s + late_s, lambda name=name: do(name))
    assert all_done.wait(5)
    outbox.put(now_s + 100, lambda: do("never"))
    outbox.close()
    assert [name for name, _ in done] == ["first", "second", "last"]
    assert done[2][1] >= 0.2
