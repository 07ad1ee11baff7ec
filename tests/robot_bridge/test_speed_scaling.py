"""A plan is followed at a share of its time: same path, inside all limits, and still at nothing."""

from dataclasses import replace

import numpy as np
import pytest

from tests.robot_bridge.test_braking import DT_S
from tests.robot_bridge.test_gate import ARM, CONFIG, HOME, Arm, ramp


@pytest.fixture
def arm() -> Arm:
    found = Arm()
    found.arm()
    return found


def follow(arm: Arm, plan: np.ndarray, share: float | None, steps: int) -> np.ndarray:
    """Follow a plan whose rest is sent at every control step, at a pace; return where the arm was
    at the end of each.
    """
    seen = []
    for k in range(steps):
        rest = plan[min(k, len(plan) - 1) :]
        arm.offer(np.concatenate([rest, np.repeat(plan[-1:], len(plan) - len(rest), 0)]))
        for _ in range(10):
            if share is not None:
                arm.gate.scale_speed(arm.now_s, share)
            arm.tick()
        seen.append(arm.pose)
    return np.array(seen)


def corner(steps: int = 8) -> np.ndarray:
    """A path that first moves one joint, then the other: who cuts the corner leaves it."""
    along = np.linspace(0, 0.4, steps)
    return HOME + np.concatenate(
        [np.stack([along, 0 * along], 1), np.stack([0 * along + 0.4, along], 1)[1:]]
    )


def test_at_a_share_of_its_time_a_plan_is_followed_on_the_same_path_more_slowly():
    fast, slow = Arm(), Arm()
    fast.arm()
    slow.arm()
    slow.gate.scale_speed(slow.now_s, 0.5)
    slow.tick(50)  # the share has ramped
    quick = follow(fast, corner(), None, 30)
    halved = follow(slow, corner(), 0.5, 30)
    assert slow.gate.state == "tracking"
    np.testing.assert_allclose(quick[-1], HOME + 0.4, atol=0.01)
    np.testing.assert_allclose(halved[-1], HOME + 0.4, atol=0.01)
    # Where the one is after n steps, the other is after 2 n, but for what both lag behind.
    np.testing.assert_allclose(halved[5:29:2], quick[2:14], atol=0.04)
    assert (np.minimum(HOME[0] + 0.4 - halved[:, 0], halved[:, 1] - HOME[1]) < 0.02).all()
    slow.assert_kept()


def test_at_a_pace_of_nothing_the_arm_comes_to_rest_and_goes_on_where_it_was(arm):
    follow(arm, corner(), 1.0, 5)
    at = arm.pose
    held = follow(arm, corner()[5:], 0.0, 10)
    assert arm.gate.state == "tracking"  # neither silence nor refusal
    assert np.abs(held[4:] - held[4]).max() == 0.0
    assert 0 < np.abs(held[-1] - at).max() < 0.1  # as far as the ramp and braking take
    assert "asks for 0 of the plan's speed" in arm.gate.why
    moved = follow(arm, corner()[5:], 1.0, 12)
    np.testing.assert_allclose(moved[-1], HOME + 0.4, atol=0.01)
    arm.assert_kept()


def test_a_new_decision_starts_the_clock_anew_and_is_not_caught_up_with_at_full_speed(arm):
    arm.gate.scale_speed(arm.now_s, 0.2)
    arm.tick(30)
    for k in range(8):  # every step another plan, which begins ahead of the arm
        arm.gate.scale_speed(arm.now_s, 0.2)
        arm.offer(HOME + 0.001 * k + 0.05 * np.arange(k, k + 16)[:, None])
        assert arm.gate.scaling.behind_s == 0.0
        arm.tick(10)
    speed = np.abs(np.diff(np.array(arm.path), axis=0)).max(0) / DT_S
    assert (speed <= 1.01 * 0.2 * ARM.velocity).all()
    arm.assert_kept()


def test_a_monitor_that_falls_silent_stops_a_monitored_arm_and_frees_another():
    for monitored in (True, False):
        arm = Arm(replace(CONFIG, monitored=monitored))
        arm.arm()
        follow(arm, corner(), 0.5, 4)
        before = arm.gate.scaling.share
        follow(arm, corner()[2:], None, 16)  # a second of silence and the ramp have passed
        assert (before, arm.gate.scaling.share) == (0.5, 0.0 if monitored else 1.0)
        assert ("monitor was silent for 1.0 s" in arm.gate.why) == monitored
        if monitored:
            arm.assert_kept()
            before = arm.pose
            follow(arm, corner()[2:], None, 5)
            np.testing.assert_array_equal(arm.pose, before)


def test_a_monitored_arm_stands_until_its_monitor_has_spoken():
    arm = Arm(replace(CONFIG, monitored=True))
    arm.tick(30)
    arm.arm()
    follow(arm, corner(), None, 8)
    np.testing.assert_array_equal(arm.pose, HOME)
    follow(arm, corner(), 1.0, 18)
    np.testing.assert_allclose(arm.pose, HOME + 0.4, atol=0.01)


def test_a_person_is_not_slowed():
    arm = Arm(replace(CONFIG, monitored=True))
    arm.arm()
    for k in range(16):
        arm.gate.scale_speed(arm.now_s, 0.0)
        assert arm.offer(ramp([0.6, 1.0])[k:], source="teleop")
        arm.tick(10)
    np.testing.assert_allclose(arm.pose, [0.6, 1.0], atol=0.03)


@pytest.mark.parametrize("share", [np.nan, np.inf, -0.1, 1.1])
def test_a_speed_scaling_that_is_no_share_counts_as_none(arm, share):
    arm.gate.scale_speed(arm.now_s, 0.5)
    arm.gate.scale_speed(arm.now_s, share)
    assert arm.gate.scaling.requested == 0.5
    assert "expected 0 to 1" in arm.gate.why
