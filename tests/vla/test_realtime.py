"""The scheduler of an arm: who decides when, and which target counts, by a clock that is given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla.runtime.rtc_scheduler import MODES, RealtimeConfig, Scheduler, inference_delay, prefix_mask

HZ, CHUNK = 10.0, 16
ASYNCHRONOUS = tuple(mode for mode in MODES if mode != "synchronous")


def scheduler(mode, n_action_steps=8, delay=4, prefix=8):
    return Scheduler(
        RealtimeConfig(mode=mode, n_action_steps=n_action_steps, delay=delay), HZ, CHUNK, prefix
    )


def chunk(number):
    """Return targets that tell their chunk and their place in it."""
    return (100.0 * number + np.arange(CHUNK, dtype=np.float32))[:, None]


def play(one, steps, takes, measured=-1.0):
    """Return the target of every control step, where decision n is there `takes(n)` steps later;
    and the prefixes by the step at which they were asked for."""
    one.start(0.0, np.array([measured], np.float32))
    targets, asked, due, count = [], {}, None, 0
    for step in range(steps):
        now_s = step / HZ
        for _ in range(2):  # one arrives, and the next one may be there at once
            if due is not None and due[0] <= step:
                one.arrive(now_s, *due[1:])
                due = None
            if one.begins(now_s):
                number, asked[step] = one.begin(now_s)
                due = step + takes(count), chunk(count), number
                count += 1
        targets.append(float(one.target(now_s)[0]))
    return targets, asked


@pytest.mark.parametrize("mode", MODES)
def test_the_first_chunk_begins_from_the_measured_pose_and_skips_nothing(mode):
    targets, asked = play(scheduler(mode), 12, lambda _: 4)
    assert targets[:4] == [-1.0] * 4
    assert targets[4:12] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert asked[0] is None


def test_synchronous_waits_where_it_is_and_begins_every_chunk_at_its_first_action():
    targets, asked = play(scheduler("synchronous"), 30, lambda _: 4)
    assert list(asked) == [0, 12, 24]
    assert targets[12:16] == [7.0] * 4
    assert targets[16:20] == [100, 101, 102, 103]


@pytest.mark.parametrize("mode", ["skip", "trained", "guided"])
def test_an_asynchronous_chunk_takes_over_where_its_time_has_come(mode):
    one = scheduler(mode)
    targets, asked = play(one, 32, lambda _: 4)
    assert list(asked) == [0, 12, 20, 28]
    assert targets[12:16] == [8, 9, 10, 11]  # still the one before
    assert targets[16:24] == [104, 105, 106, 107, 108, 109, 110, 111]
    assert targets[24:28] == [204, 205, 206, 207]
    assert (one.starved, one.late) == (0, 0)


def test_a_trained_prefix_is_what_will_have_been_done():
    one = scheduler("trained")
    targets, asked = play(one, 32, lambda _: 4)
    for step, prefix in asked.items():
        if step == 0:
            continue
        assert not prefix.guided
        assert prefix.mask.tolist() == [[1.0] * 4 + [0.0] * 12]
        assert prefix.values[0, :4, 0].tolist() == targets[step : step + 4]


def test_guidance_fades_over_what_was_planned():
    _, asked = play(scheduler("guided"), 13, lambda _: 4)
    prefix = asked[12]
    assert prefix.guided
    weight = prefix.mask[0]
    assert weight[:4].tolist() == [1.0] * 4
    assert (np.diff(weight[3:9]) < 0).all()
    assert weight[8:].tolist() == [0.0] * 8  # the chunk before has 8 actions from there on
    assert prefix.values[0, :8, 0].tolist() == list(range(8, 16))


def test_the_weights_are_those_of_the_paper():
    settled, n_action_steps, chunk_ = 3, 6, 12
    i = np.arange(chunk_)
    c = (chunk_ - n_action_steps - i) / (chunk_ - n_action_steps - settled + 1)
    theirs = np.where(i < settled, 1, c * (np.exp(c) - 1) / (np.e - 1))
    theirs[chunk_ - n_action_steps :] = 0
    np.testing.assert_allclose(
        prefix_mask(settled, chunk_ - n_action_steps, chunk_), theirs, atol=1e-6
    )


def test_ensembling_averages_all_that_cover_a_step_the_oldest_most():
    targets, _ = play(scheduler("ensemble", n_action_steps=4), 16, lambda _: 4)
    old, new = 8.0, 104.0  # step 12: chunk 0 began at step 4, chunk 1 was asked for at step 8
    share = np.exp(-0.01)
    assert targets[12] == pytest.approx((old + share * new) / (1 + share), rel=1e-5)


@pytest.mark.parametrize("mode", ["skip", "trained", "guided", "ensemble"])
def test_an_arm_that_ran_out_of_targets_stands_still_and_does_not_skip(mode):
    one = scheduler(mode, n_action_steps=8)
    targets, _ = play(one, 26, lambda n: 4 if n == 0 else 11)
    assert targets[12:20] == list(range(8, 16))
    assert targets[20:23] == [15.0] * 3  # chunk 1 was asked for at 12, and is there at 23
    assert targets[23:26] == [108, 109, 110]  # the 3 steps it stood still are not skipped
    assert one.starved == 3
    assert one.late == 1


def test_a_new_episode_knows_nothing_of_the_last_one():
    one = scheduler("trained")
    play(one, 20, lambda _: 4)
    targets, asked = play(one, 5, lambda _: 4, measured=-2.0)
    assert targets[:4] == [-2.0] * 4
    assert targets[4] == 0.0
    assert asked == {0: None}


def test_it_is_the_time_that_counts_not_how_often_it_is_asked():
    one = scheduler("trained", delay=2)
    one.start(100.0, np.zeros(1, np.float32))
    assert one.begins(100.0)
    number, _ = one.begin(100.0)
    assert not one.begins(100.05)
    one.arrive(100.2, chunk(0), number)
    assert float(one.target(100.29)[0]) == 0.0
    assert float(one.target(100.5)[0]) == 3.0
    assert not one.begins(100.99)
    assert one.begins(101.0)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES), n_action_steps=st.integers(1, 16), delay=st.integers(0, 8),
    takes=st.lists(st.integers(0, 20), min_size=1, max_size=8),
)  # fmt: skip
def test_whatever_decisions_take_it_gives_targets_of_chunks_it_was_given(
    mode, n_action_steps, delay, takes
):
    try:
        one = scheduler(mode, n_action_steps, delay)
    except ValueError:
        return
    targets, asked = play(one, 60, lambda n: takes[n % len(takes)])
    assert np.isfinite(targets).all()
    assert targets[0] in (-1.0, 0.0)
    assert asked  # it goes on to decide
    if mode != "ensemble":  # every target is one of a chunk, or the measured pose
        assert all(t == -1 or t % 100 < CHUNK for t in targets)
        steps = np.diff([t for t in targets if t >= 0])
        assert ((steps >= 0) & (steps <= 200 + CHUNK)).all()  # never back to an older chunk


def test_it_does_not_start_where_decisions_take_longer_than_was_trained():
    with pytest.raises(ValueError, match="takes 9 control steps, .* at most 8 .*max_prefix_len 9"):
        scheduler("trained", n_action_steps=9, delay=9)


@pytest.mark.parametrize("mode", ASYNCHRONOUS)
@pytest.mark.parametrize("n_action_steps", [3, 13])
def test_it_does_not_start_where_chunks_would_run_out(mode, n_action_steps):
    with pytest.raises(ValueError, match=f"got {n_action_steps}, expected 4 to 12"):
        scheduler(mode, n_action_steps=n_action_steps)


def test_it_refuses_a_chunk_that_was_not_asked_for_or_is_no_target_and_decides_anew():
    one = scheduler("skip")
    one.start(0.0, np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="got one of decision 7, expected none"):
        one.arrive(0.0, chunk(0), 7)
    for wrong in (chunk(0) * np.nan, chunk(0)[:3], chunk(0).repeat(2, 1)):
        number, _ = one.begin(0.0)
        assert not one.begins(0.0)
        with pytest.raises(ValueError, match="expected finite"):
            one.arrive(0.0, wrong, number)
        assert one.begins(0.0)
    number, _ = one.begin(0.0)
    one.fail(number - 1)
    assert not one.begins(0.0)
    one.fail(number)
    assert one.begins(0.0)
    assert float(one.target(0.0)[0]) == 0.0


def test_what_was_decided_for_the_last_episode_is_not_taken_for_this_one():
    one = scheduler("skip")
    one.start(0.0, np.zeros(1, np.float32))
    old, _ = one.begin(0.0)
    one.start(5.0, np.ones(1, np.float32))
    new, _ = one.begin(5.0)
    with pytest.raises(ValueError, match=f"got one of decision {old}, expected decision {new};"):
        one.arrive(5.2, chunk(0), old)
    one.arrive(5.2, chunk(1), new)
    assert float(one.target(5.2)[0]) == 100.0


def test_a_pose_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="measured pose: got .* expected finite"):
        scheduler("skip").start(0.0, np.array([np.nan], np.float32))


@pytest.mark.parametrize("asked_every_s", [0.01, 0.1, 0.35])
def test_how_long_it_stood_still_is_a_matter_of_time(asked_every_s):
    one = scheduler("skip")
    one.start(0.0, np.full(1, -1.0, np.float32))
    number, _ = one.begin(0.0)
    one.arrive(0.0, chunk(0), number)
    number, _ = one.begin(0.8)
    for now_s in np.arange(0.8, 2.0, asked_every_s):
        assert float(one.target(now_s)[0]) == min(float(one.step(now_s)), 15.0)
    one.arrive(2.0, chunk(1), number)  # the first chunk ended at 1.6
    assert float(one.target(2.0)[0]) == 108.0
    assert one.starved == 4


def test_a_chunk_between_two_control_steps_is_late_as_well():
    one = scheduler("skip")
    one.start(0.0, np.zeros(1, np.float32))
    number, _ = one.begin(0.0)
    one.arrive(0.39, chunk(0), number)
    assert one.late == 0
    number, _ = one.begin(1.2)
    one.arrive(1.65, chunk(1), number)
    assert one.late == 1


@pytest.mark.parametrize(("mode", "n_action_steps"), [("synchronous", 4), ("trained", 8)])
def test_a_policy_that_remembers_decides_at_the_pace_it_was_trained_for(mode, n_action_steps):
    config = RealtimeConfig(mode=mode, n_action_steps=n_action_steps, delay=4)
    Scheduler(config, HZ, CHUNK, 8, period=8)
    with pytest.raises(
        ValueError, match=f"trained with one every 9: give n_action_steps {n_action_steps + 1}"
    ):
        Scheduler(config, HZ, CHUNK, 8, period=9)


def test_a_decision_of_more_than_half_a_chunk_is_refused_in_its_own_words():
    with pytest.raises(ValueError, match="takes 9 of a chunk's 16 control steps, more than half"):
        scheduler("skip", n_action_steps=9, delay=9)


def test_the_delay_is_the_longest_measured_without_what_warmed_up():
    latencies = [3.0, 0.9, 0.11, 0.2, 0.15]
    assert inference_delay(latencies, HZ, warm=2) == 2
    assert inference_delay(latencies, HZ) == 30
    with pytest.raises(ValueError, match="got 5, expected more than the 5 of warming up"):
        inference_delay(latencies, HZ, warm=5)
