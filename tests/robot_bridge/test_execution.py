"""A goal of the action: which status ends it, and with what."""

import math

import pytest

from robot_bridge.policy.execution import Execution

NOW_S = 10.0
TRACKING = {"state": "tracking", "why": ""}
DONE = {"episode": "4", "instruction": "press", "state": "done", "value": "0.97", "why": "complete"}


@pytest.fixture
def goal():
    execution = Execution("press", began_s=10.0, limit_s=5.0, scored_before=3.0)
    execution.on_safety(TRACKING, NOW_S)
    return execution


def test_the_monitor_ends_it_with_success(goal):
    goal.on_monitor(DONE | {"state": "nominal", "value": "0.4"})
    assert goal.outcome is None
    assert goal.progress == 0.4
    goal.on_monitor(DONE)
    assert goal.outcome == ("NONE", "complete")
    goal.tick(99.0)
    goal.end("CANCELED", "canceled")
    assert goal.outcome.error == "NONE"  # the first one counts


@pytest.mark.parametrize(
    "other",
    [{"episode": "3"}, {"instruction": "open"}, {"episode": "3", "instruction": "open"}],
    ids=["an_earlier_episode", "another_instruction", "both"],
)
def test_what_the_monitor_says_of_something_else_is_not_taken(goal, other):
    goal.on_monitor(DONE | other)
    assert goal.outcome is None
    assert math.isnan(goal.progress)


def test_time_is_up_without_a_score_and_with_one(goal):
    goal.on_safety(TRACKING, 14.5)
    goal.tick(14.9)
    assert goal.outcome is None
    goal.tick(15.0)
    assert goal.outcome == ("TIME_LIMIT", "not done after 5 s (progress: no reward model)")
    scored = Execution("press", began_s=0.0, limit_s=1.0)
    scored.on_safety(TRACKING, NOW_S)
    scored.on_monitor(DONE | {"state": "nominal", "value": "0.25"})
    scored.on_monitor(DONE | {"state": "nominal", "value": "nan"})
    scored.tick(2.0)
    assert scored.outcome.message.endswith("(progress: 0.25)")


@pytest.mark.parametrize("state", ["disabled", "latched_fault", "stopping"])
def test_an_arm_that_is_not_enabled_ends_it(goal, state):
    goal.on_safety({"state": state, "why": "estop: asked for"}, NOW_S)
    assert goal.outcome == ("STOPPED", f"the safety node is {state}: estop: asked for")


@pytest.mark.parametrize("state", ["disabled", "latched_fault", ""])
def test_an_arm_that_was_never_enabled_ends_it_after_a_moment(state):
    goal = Execution("press", began_s=0.0, limit_s=9.0)
    goal.on_safety({"state": state} if state else {}, NOW_S)
    goal.tick(0.4)  # it may have been enabled just now
    assert goal.outcome is None
    goal.tick(0.6)
    assert goal.outcome.error == "NOT_ENABLED"
    assert f"{state or 'silent'}; enable it: vla safety enable" in goal.outcome.message
    late = Execution("press", began_s=0.0, limit_s=9.0)
    late.on_safety({"state": state}, NOW_S)
    late.on_safety(TRACKING, NOW_S)
    late.tick(0.6)
    assert late.outcome is None


def test_a_safety_node_that_falls_silent_ends_it(goal):
    goal.tick(NOW_S + 1.9)
    assert goal.outcome is None
    goal.tick(NOW_S + 2.1)
    assert goal.outcome == ("STOPPED", "the safety node was silent for 2 s")


@pytest.mark.parametrize("wrong", [{"episode": "x"}, {"value": "abc"}, {"state": ""}])
def test_a_status_of_the_monitor_that_is_damaged_ends_nothing(goal, wrong):
    goal.on_monitor(DONE | {"state": "nominal"} | wrong)
    goal.on_monitor({})
    assert goal.outcome is None
