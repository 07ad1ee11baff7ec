"""The audit finds every command beyond a limit, and none where there is none."""

from dataclasses import replace

import numpy as np

from benchmarks.robot_bridge.audit import audit
from tests.robot_bridge.test_gate import ARM, DT_S, HOME, Arm, ramp

MOVES = np.zeros(50, np.bool_)


def still(count: int = 50) -> np.ndarray:
    return np.tile(HOME, (count, 1))


def found(commands: np.ndarray, series: np.ndarray | None = None) -> dict[str, int]:
    one = np.zeros(len(commands), int) if series is None else series
    return audit(one, commands, MOVES, ARM, DT_S).violations


def test_an_arm_that_stands_still_violates_nothing():
    assert set(found(still()).values()) == {0}


def test_a_step_violates_velocity_acceleration_and_jerk():
    commands = still()
    commands[20:, 0] += 0.1  # 10 rad/s in a tick; 2 are allowed
    assert found(commands) == {
        "finite": 0, "position": 0, "velocity": 1, "acceleration": 2, "jerk": 3,
    }  # fmt: skip
    worst = audit(np.zeros(50, int), commands, MOVES, ARM, DT_S).worst
    np.testing.assert_allclose(
        [worst["velocity"], worst["acceleration"], worst["jerk"]],
        [10 / 2, 1000 / 20, 200_000 / 800],
    )


def test_a_step_between_two_series_is_none_and_one_at_the_start_of_a_series_is():
    commands, series = still(), np.repeat([1, 2], 25)
    commands[25:, 0] += 0.1
    assert set(found(commands, series).values()) == {0}
    commands[26:, 0] += 0.1
    assert found(commands, series)["velocity"] == 1


def test_what_is_not_finite_or_out_of_range_counts():
    commands = still()
    commands[10, 1] = np.nan
    assert found(commands)["finite"] == 1
    commands = still()
    commands[:, 0] = ARM.high[0] + 1e-6
    assert found(commands)["position"] == 50


def test_a_stop_is_held_to_the_limits_of_stops_and_a_motion_to_its_own():
    limits = replace(ARM, stop_acceleration=2 * ARM.acceleration, stop_jerk=5 * ARM.jerk)
    arm = Arm(limits=limits)
    arm.arm()
    assert arm.offer(ramp([0.9, 1.5]))
    decided = []
    for tick in range(80):
        if tick == 20:
            arm.gate.estop("a person", "estop")
        arm.tick()
        decided += arm.gate.decided
    commands, stops = map(np.array, zip(*decided, strict=True))
    assert 0 < stops.sum() < len(stops)
    one = np.zeros(len(commands), int)
    judged = audit(one, commands, stops, limits, DT_S)
    assert set(judged.violations.values()) == {0}
    assert judged.worst["jerk"] > 0.9
    # The same commands, taken for a motion, are beyond its limits; so is a harder stop.
    moves = np.zeros_like(stops)
    assert audit(one, commands, moves, limits, DT_S).violations["jerk"] > 0
    gentle = replace(limits, stop_jerk=ARM.jerk, stop_acceleration=ARM.acceleration)
    assert audit(one, commands, stops, gentle, DT_S).violations["jerk"] > 0
