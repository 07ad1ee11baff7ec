"""The audit finds every command beyond a limit, and none where there is none."""

import numpy as np

from benchmarks.robot_bridge.audit import audit
from tests.robot_bridge.test_gate import ARM, DT_S, HOME


def still(count: int = 50) -> np.ndarray:
    return np.tile(HOME, (count, 1))


def found(commands: np.ndarray, series: np.ndarray | None = None) -> dict[str, int]:
    one = np.zeros(len(commands), int) if series is None else series
    return audit(one, commands, ARM, DT_S).violations


def test_an_arm_that_stands_still_violates_nothing():
    assert set(found(still()).values()) == {0}


def test_a_step_violates_velocity_acceleration_and_jerk():
    commands = still()
    commands[20:, 0] += 0.1  # 10 rad/s in a tick; 2 are allowed
    assert found(commands) == {
        "finite": 0, "position": 0, "velocity": 1, "acceleration": 2, "jerk": 3,
    }  # fmt: skip
    worst = audit(np.zeros(50, int), commands, ARM, DT_S).worst
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
