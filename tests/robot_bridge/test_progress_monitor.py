"""What a reward model says becomes fine, slow, help, hold or done; silence becomes nothing."""

import numpy as np
import pytest

from robot_bridge.sensing.progress_monitor import ProgressMonitor, ProgressMonitorConfig

CONFIG = ProgressMonitorConfig(
    window_s=0.4, gain=0.05, stall_s=2.0, help_s=4.0, drop=0.3, sustain_s=0.4, confident=0.5,
    done=0.8,
)  # fmt: skip
STEP_S = 0.2


def states(values, watch=None, done=0.0, confidence=0.9, begin_s=0.0):
    """Return the state after each value, one every 0.2 s."""
    watch = watch or ProgressMonitor(CONFIG)
    return [
        watch.update(begin_s + i * STEP_S, value, done, confidence)
        for i, value in enumerate(values)
    ]


def test_steady_progress_is_fine():
    # 0.02 in 0.2 s: a gain of 0.05 every 0.6 s.
    assert set(states(np.arange(0, 1, 0.02))) == {"nominal"}


def test_a_stall_slows_the_arm_then_requests_an_intervention_and_a_gain_ends_both():
    watch = ProgressMonitor(CONFIG)
    found = states([0.4] * 25, watch)
    assert found.index("stalled") == 10  # 2.0 s after the first
    assert found.index("intervention_requested") == 20  # 4.0 s
    assert watch.why == "no progress beyond 0.40 for 4.0 s"
    found = states([0.44] * 5, watch, begin_s=5.0)
    assert set(found) == {"intervention_requested"}  # less than the gain
    found = states([0.46] * 5, watch, begin_s=6.0)
    # The median of three moments follows with the second of them.
    assert found == ["intervention_requested", "nominal", "nominal", "nominal", "nominal"]
    assert watch.why == "progress rose to 0.46"


def test_a_collapse_that_lasts_holds_and_only_what_is_regained_ends_it():
    watch = ProgressMonitor(CONFIG)
    found = states([0.7, 0.7, 0.7, *[0.3] * 6], watch)
    # The median falls with the second moment of 0.3; 0.4 s later it is held.
    assert found == ["nominal"] * 6 + ["regressed"] * 3
    assert watch.why == "progress fell from 0.70 to 0.30"
    assert set(states([0.5] * 40, watch, begin_s=2.0)) == {
        "regressed"
    }  # within half the drop it is not
    assert states([0.6] * 3, watch, begin_s=11.0)[-1] == "nominal"
    assert "back at 0.60" in watch.why


def test_a_single_bad_moment_is_no_collapse():
    assert set(states([0.6, 0.6, 0.6, 0.0, 0.65, 0.7, 0.72])) == {"nominal"}


def test_who_is_done_is_watched_no_more():
    watch = ProgressMonitor(CONFIG)
    assert states([0.95] * 3, watch, done=0.9)[-1] == "done"
    assert set(states([0.1] * 30, watch, begin_s=1.0)) == {"done"}


@pytest.mark.parametrize(
    ("value", "confidence"), [(np.nan, 0.9), (0.0, 0.49), (0.0, np.nan), (np.inf, 0.9)]
)
def test_a_reward_model_that_abstains_never_stops_an_arm(value, confidence):
    watch = ProgressMonitor(CONFIG)
    assert set(states([value] * 100, watch, confidence=confidence)) == {"nominal"}
    assert np.isnan(watch.level)
    states([0.6] * 5, watch, begin_s=30.0)
    assert set(states([value] * 100, watch, confidence=confidence, begin_s=31.0)) == {"nominal"}
    # What lies in a silence was not watched: 0.8 s before it and 1 s after it make no stall.
    assert set(states([0.6] * 6, watch, begin_s=60.0)) == {"nominal"}


def test_a_reward_model_that_abstains_does_not_end_a_hold_either():
    watch = ProgressMonitor(CONFIG)
    states([0.7, 0.7, 0.7, *[0.3] * 6], watch)
    assert set(states([np.nan] * 50, watch, begin_s=2.0)) == {"regressed"}


def test_a_moment_that_comes_twice_counts_once():
    watch = ProgressMonitor(CONFIG)
    for _ in range(100):
        watch.update(0.0, 0.4, 0.0, 0.9)
    assert (watch.state, watch.still_s) == ("nominal", 0.0)


def test_an_intervention_before_slowing_is_refused():
    with pytest.raises(ValueError, match="help_s: got 1.0, expected at least stall_s, 2.0"):
        ProgressMonitorConfig(stall_s=2.0, help_s=1.0)
