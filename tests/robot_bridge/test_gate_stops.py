"""Who falls silent, dies, fails or does not follow stops the arm, and how it stops."""

from dataclasses import replace

import numpy as np
import pytest

from tests.robot_bridge.test_gate import ARM, CONFIG, HOME, Arm, ramp


@pytest.fixture
def arm() -> Arm:
    found = Arm()
    found.arm()
    return found


def test_a_person_who_falls_silent_latches_even_if_the_policy_goes_on(arm):
    assert arm.offer(ramp([0.6, 1.0]), source="teleop")
    for _ in range(40):
        arm.tick()
        arm.offer(ramp([0.6, 1.0]))
    assert arm.gate.state == "latched_fault"
    assert arm.gate.why == "no chunk for 0.3 s from teleop"


def test_a_policy_that_dies_latches_an_arm_that_holds_as_well(arm):
    arm.gate.policy_died("gone")
    arm.tick(2)
    assert (arm.gate.state, arm.gate.stage) == ("latched_fault", "policy_died")


def test_a_policy_that_dies_while_a_person_leads_stops_nothing(arm):
    assert arm.offer(ramp([0.6, 1.0]), source="teleop")
    arm.gate.policy_died("gone")
    assert arm.gate.state == "tracking"


def test_a_part_that_fails_brings_the_arm_to_rest_and_latches(arm):
    assert arm.offer(ramp([0.6, 1.0]))
    arm.tick(10)
    arm.gate.fail("joint_states: KeyError: 3")
    arm.tick(60)
    assert (arm.gate.state, arm.gate.stage) == ("latched_fault", "internal_error")
    arm.assert_kept()


def test_a_joint_that_is_silent_alone_is_named(arm):
    assert arm.offer(ramp([0.6, 1.0]))
    arm.sees = False
    for _ in range(20):
        arm.tick()
        arm.gate.measure(np.array([arm.now_s, 100.0]), arm.pose)
    assert arm.gate.why == "no joint states of knee for 0.1 s"


@pytest.mark.parametrize("speed", [1.0, 0.1])
def test_an_arm_that_is_held_is_held_where_it_is_and_enabled_again_without_a_step(speed):
    """The reference comes back to the arm, from no further than stated."""
    config = replace(CONFIG, max_tracking_error=0.05, max_lag_s=0.05, tracking_timeout_s=0.02)
    allowed = replace(ARM, stop_acceleration=2 * ARM.acceleration, stop_jerk=4 * ARM.jerk)
    arm = Arm(config, limits=allowed.scaled(speed))
    arm.arm()
    arm.follows = False
    furthest = 0.0
    for k in range(60):
        arm.offer(HOME + np.array([0.02, 0.0]) * speed * (k + np.arange(16)[:, None]))
        arm.tick()
        if arm.path:
            furthest = max(furthest, np.abs(arm.path[-1] - arm.pose).max())
    arm.tick(100)
    assert (arm.gate.state, arm.gate.stage) == ("latched_fault", "tracking_error")
    assert arm.gate.why.startswith("hip is ")
    np.testing.assert_allclose(arm.path[-1], arm.pose, atol=3e-3)
    v = speed * ARM.velocity[0]
    rest = v * ARM.acceleration[0] / ARM.jerk[0] + v**2 / (2 * allowed.stop_acceleration[0])
    assert furthest < 0.05 + (0.05 + 0.03) * v + rest
    assert furthest < 0.1 or speed == 1.0
    before = arm.path[-1]
    assert arm.gate.reset() == ""
    assert arm.gate.enable(arm.now_s, True) == ""
    arm.tick(3)
    np.testing.assert_allclose(arm.path[-3:], [before] * 3, atol=3e-3)


def test_a_stop_that_a_fault_demands_is_harder_than_one_that_is_asked_for():
    allowed = replace(ARM, stop_acceleration=2 * ARM.acceleration, stop_jerk=4 * ARM.jerk)
    took = {}
    for name in ("disable", "estop"):
        arm = Arm(limits=allowed)
        arm.arm()
        assert arm.offer(ramp([1.0, 1.0], steps=4))
        arm.tick(12)
        assert np.abs(arm.gate.motion.v).max() > 1
        arm.gate.estop("asked") if name == "estop" else arm.gate.enable(arm.now_s, False)
        begin = len(arm.path)
        arm.tick(60)
        took[name] = int(np.flatnonzero(np.any(np.diff(arm.path, axis=0), 1))[-1]) - begin
    assert took["estop"] < 0.8 * took["disable"]


def test_an_object_in_the_gripper_is_no_joint_that_does_not_follow():
    arm = Arm(limits=replace(ARM, gripper="knee"))
    arm.arm()
    arm.follows = False
    for k in range(60):
        arm.offer([HOME + [0.0, 0.02 * k]] * 2)
        arm.tick()
    assert arm.gate.state == "tracking"


def test_a_linear_joint_is_watched_in_a_tenth_of_the_distance():
    arm = Arm(
        replace(CONFIG, max_tracking_error=0.5, max_lag_s=0.0),
        limits=replace(ARM, linear=("knee",)),
    )
    arm.arm()
    arm.follows = False
    for _ in range(60):
        arm.offer([HOME + [0.04, 0.045]] * 2)
        arm.tick()
    assert arm.gate.state == "tracking"
    for _ in range(60):
        arm.offer([HOME + [0.06, 0.049], HOME + [0.06, 0.06]])
        arm.tick()
    assert arm.gate.why.startswith("knee is ")


def test_an_arm_with_nothing_to_follow_is_disabled_in_the_end():
    arm = Arm(replace(CONFIG, idle_timeout_s=1.0))
    arm.arm()
    arm.tick(95)
    arm.offer(ramp([0.4, 0.5]))
    arm.tick(10)
    assert arm.gate.state == "tracking"
    arm.offer([[np.nan, 0.0]])  # holds it
    arm.tick(90)
    assert arm.gate.state == "holding"
    arm.tick(20)
    assert (arm.gate.state, arm.gate.stage) == ("disabled", "idle")
    assert arm.gate.why == "nothing to follow for 1.0 s"


def test_a_fault_of_the_driver_stops_an_armed_arm_alone(arm):
    arm.offer(ramp([0.4, 0.5]))
    arm.tick(20)
    arm.gate.stop("driver_state", "io/robot_mode: data is 3, expected 7")
    arm.tick(100)
    assert (arm.gate.state, arm.gate.stage) == ("latched_fault", "driver_state")
    arm.assert_kept()
    arm.assert_still()
    arm.gate.reset()
    arm.gate.stop("driver_state", "again")  # `enable` refuses; there is nothing to stop
    assert arm.gate.state == "disabled"
