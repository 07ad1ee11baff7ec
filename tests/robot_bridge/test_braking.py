"""Braking keeps every limit, and whoever moves on can brake: for any wish, at any tick."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_bridge.motion import braking, limits
from robot_bridge.motion.limits import Limits
from vla.contracts import registry

DT_S = 0.01
TIGHT = 1 + 1e-8
"""Rounding of differences of differences."""


def limits_of(robot: str) -> Limits:
    return limits.of_spec(registry.load("vla.robots", robot).SPEC)


def one(low=-1.0, high=1.0, velocity=2.0, acceleration=10.0, jerk=100.0) -> Limits:
    row = (low, high, velocity, acceleration, jerk, acceleration, jerk)
    return Limits(
        names=("hinge",),
        **{
            name: np.array([value])
            for name, value in zip(
                (
                    "low",
                    "high",
                    "velocity",
                    "acceleration",
                    "jerk",
                    "stop_acceleration",
                    "stop_jerk",
                ),
                row,
                strict=True,
            )
        },
    )


def assert_kept(path: np.ndarray, allowed: Limits, dt_s: float = DT_S) -> None:
    """Positions f64 [t, u] from a standstill on keep every limit, by differences."""
    path = np.concatenate([np.repeat(path[:1], 3, 0), path])
    assert (path >= allowed.low - 1e-8).all()
    assert (path <= allowed.high + 1e-8).all()
    for name in ("velocity", "acceleration", "jerk"):
        path = np.diff(path, axis=0) / dt_s
        # Differences of numbers of size 1 that are rounded at 1e-16, divided by a tick each time.
        noise = 1e-15 / dt_s ** (1 + ("velocity", "acceleration", "jerk").index(name)) * 8
        assert (np.abs(path) <= TIGHT * getattr(allowed, name) + noise).all(), name


def assert_braked(motion, way: np.ndarray, allowed: Limits) -> None:
    """A way f64 [t, u] is where braking from a motion leads, to a standstill."""
    np.testing.assert_array_equal(way[0], motion.p)
    for pose in way[1:]:
        motion = braking.advance(motion, braking.braking(motion, allowed, DT_S), DT_S)
        np.testing.assert_array_equal(pose, motion.p)
    assert (np.abs(motion.v) + np.abs(motion.a) < 1e-12).all()


def test_braking_takes_away_velocity_by_whole_ticks_of_jerk():
    allowed = one()
    step = 100.0 * DT_S  # acceleration that a tick of jerk makes
    v = step * DT_S * 3 * 4 / 2  # what 3, 2, 1 steps take away
    motion = braking.Motion(np.zeros(1), np.array([v]), np.array([-4 * step]))
    seen = []
    for _ in range(4):
        motion = braking.advance(motion, braking.braking(motion, allowed, DT_S), DT_S)
        seen.append(float(motion.a[0]) / step)
    np.testing.assert_allclose(seen, [-3, -2, -1, 0], atol=1e-9)
    assert abs(motion.v[0]) < 1e-12


@settings(max_examples=200, deadline=None)
@given(
    v=st.floats(-2.0, 2.0), a=st.floats(-10.0, 10.0), jerk=st.floats(20.0, 1000.0),
    dt_s=st.sampled_from([0.002, 0.01, 0.02]),
)  # fmt: skip
def test_whatever_moves_comes_to_rest(v, a, jerk, dt_s):
    allowed = one(-100.0, 100.0, 1e3, 10.0, jerk)
    motion = braking.Motion(np.zeros(1), np.array([v]), np.array([a]))
    for _ in range(round(braking.LONGEST_S / dt_s)):
        before = motion
        motion = braking.advance(motion, braking.braking(motion, allowed, dt_s), dt_s)
        assert abs(motion.a[0] - before.a[0]) <= TIGHT * jerk * dt_s
        assert abs(motion.a[0]) <= 10.0 * TIGHT
        if abs(motion.v[0]) + abs(motion.a[0]) < 1e-12:
            return
    raise AssertionError(f"still moving: {motion}")


def test_from_where_one_cannot_stop_in_time_is_known():
    allowed = one()
    for p, kept in ((0.0, True), (0.9, False), (1.1, False)):
        motion = braking.Motion(np.array([p]), np.array([1.5]), np.zeros(1))
        assert braking.can_stop(motion, allowed, DT_S)[0].tolist() == [kept]
    fast = braking.Motion(np.zeros(1), np.array([1.99]), np.array([10.0]))
    assert not braking.can_stop(fast, allowed, DT_S)[0].any()  # it would go on to be faster


@pytest.mark.parametrize("robot", ["so101", "panda"])
def test_any_wish_at_any_tick_keeps_every_limit(robot):
    allowed, rng = limits_of(robot), np.random.default_rng(0)
    motion = braking.at_rest((allowed.low + allowed.high) / 2)
    path, target = [motion.p], motion.p
    for k in range(3000):
        if k % int(rng.integers(1, 30)) == 0:
            ends = rng.choice(np.stack([allowed.low - 1, allowed.high + 1]))
            target = ends if rng.random() < 0.3 else rng.uniform(allowed.low, allowed.high)
        speed = rng.normal(size=len(target)) * allowed.velocity
        wanted, _ = braking.follow(motion, target, speed, allowed, DT_S)
        motion, way = braking.move(motion, wanted, allowed, DT_S)
        path.append(motion.p)
        if k % 20 == 0:
            assert_braked(motion, way, allowed)
    assert_kept(np.array(path), allowed)
    assert np.ptp(np.array(path), axis=0).min() > 0.3 * (allowed.high - allowed.low).min()


@pytest.mark.parametrize("distance", [0.02, 0.1, 0.5, 0.9])
def test_a_step_is_reached_and_not_overshot(distance):
    allowed = limits_of("so101")
    motion, start = braking.at_rest(np.zeros(6)), np.zeros(6)
    furthest = start
    for _ in range(150):
        wanted, _ = braking.follow(motion, start + distance, np.zeros(6), allowed, DT_S)
        motion, _ = braking.move(motion, wanted, allowed, DT_S)
        furthest = np.maximum(furthest, motion.p)
    np.testing.assert_allclose(motion.p, distance, atol=1e-3)
    assert furthest.max() < 1.01 * distance


def test_a_smooth_path_is_followed_closely():
    allowed, dt_s = limits_of("so101"), DT_S
    motion, worst = braking.at_rest(np.full(6, 0.45)), 0.0  # the hand opens from -0.1 to 1.0
    for k in range(300):
        path, speed = 0.45 + 0.5 * np.sin(2 * k * dt_s), np.cos(2 * k * dt_s)
        wanted, cut = braking.follow(motion, np.full(6, path), np.full(6, speed), allowed, dt_s)
        motion, _ = braking.move(motion, wanted, allowed, dt_s)
        if k > 100:
            worst = max(worst, float(np.abs(motion.p - path).max()))
            assert cut == []
    assert worst < 0.015


@pytest.mark.parametrize("robot", ["so101", "panda"])
def test_a_tenth_of_the_speed_stops_in_the_same_time(robot):
    allowed = limits.of_spec(registry.load("vla.robots", robot).SPEC)
    stops = [braking.stop_s(allowed.scaled(share), 0.01) for share in (1.0, 0.1, 0.01)]
    assert stops[0] == stops[1] == stops[2]


def test_the_time_to_stop_is_that_of_the_worst_motion():
    allowed = one()
    stop_s = braking.stop_s(allowed, DT_S)
    # v / a + a / j, and the ticks of the ramp from +a to -a
    assert 2.0 / 10.0 + 10.0 / 100.0 < stop_s < 2.0 / 10.0 + 3 * 10.0 / 100.0 + 0.05
    rng = np.random.default_rng(0)
    for _ in range(300):
        motion = braking.Motion(np.zeros(1), rng.uniform(-2, 2, 1), rng.uniform(-10, 10, 1))
        wide = one(-100.0, 100.0)
        if not braking.can_stop(motion, wide, DT_S)[0].all():
            continue
        ticks = 0
        while np.abs(motion.v).sum() + np.abs(motion.a).sum() >= 1e-12:
            motion = braking.advance(motion, braking.braking(motion, wide, DT_S), DT_S)
            ticks += 1
        assert ticks * DT_S <= stop_s + 2 * DT_S
    with pytest.raises(ValueError, match="'hinge' takes more than 3.0 s to stop"):
        braking.stop_s(one(acceleration=0.1), DT_S)
