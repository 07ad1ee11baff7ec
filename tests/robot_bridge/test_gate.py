"""The gate keeps every limit whatever comes, and whatever goes wrong ends standing still."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_bridge.motion.limits import Limits
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from tests.robot_bridge.test_braking import DT_S, assert_kept

CONFIG = GateConfig(
    lead_ticks=0,
    rate_hz=100.0,
    max_chunk_age_s=0.2,
    command_timeout_s=0.3,
    joint_state_timeout_s=0.1,
    max_start_deviation=0.5,
    max_tracking_error=0.6,
    rest_position_tolerance=0.05,
)
ARM = Limits(
    names=("hip", "knee"), low=np.array([-1.0, -0.5]), high=np.array([1.0, 2.0]),
    velocity=np.array([2.0, 3.0]), acceleration=np.array([20.0, 25.0]),
    jerk=np.array([800.0, 900.0]), stop_acceleration=np.array([20.0, 25.0]),
    stop_jerk=np.array([800.0, 900.0]),
)  # fmt: skip
HOME = np.array([0.2, 0.3])
HZ = 10.0


class Arm:
    """A gate, an arm that is where it is told to be, and a clock."""

    def __init__(self, config: GateConfig = CONFIG, obstacles=None, limits: Limits = ARM) -> None:
        self.gate = Gate(config, limits, obstacles)
        self.now_s, self.pose = 100.0, HOME.copy()
        self.path: list[np.ndarray] = []
        self.sees, self.follows = True, True

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_s += DT_S
            if self.sees:
                self.gate.measure(self.now_s, self.pose)
            command = self.gate.tick(self.now_s)
            if command is not None:
                self.path.append(command)
                if self.follows:
                    self.pose = command

    def arm(self) -> None:
        self.tick()
        assert self.gate.enable(self.now_s, True) == ""

    def offer(self, positions, age_s: float = 0.0, source="policy", late_s: float = 0.0) -> bool:
        positions = np.array(positions, np.float64)
        times_s = self.now_s + late_s + np.arange(len(positions)) / HZ
        return self.gate.offer(self.now_s, source, times_s, positions, age_s)

    def assert_kept(self) -> None:
        assert_kept(np.array([HOME, *self.path]), ARM)

    def assert_still(self) -> None:
        before = self.pose.copy()
        self.tick(50)
        np.testing.assert_array_equal(self.pose, before)


def ramp(to, steps: int = 16) -> np.ndarray:
    return HOME + np.linspace(0, 1, steps)[:, None] * (np.array(to) - HOME)


@pytest.fixture
def arm() -> Arm:
    found = Arm()
    found.arm()
    return found


def test_nothing_leaves_before_it_is_enabled_and_then_it_holds_the_measured_pose():
    arm = Arm()
    arm.tick(5)
    assert arm.path == []
    assert not arm.offer(ramp([0.5, 0.5]))
    arm.arm()
    arm.tick(5)
    np.testing.assert_array_equal(arm.path, [HOME] * 5)
    assert arm.gate.state == "holding"


def test_the_first_command_is_where_the_arm_stands_however_soon_a_chunk_comes(arm):
    assert arm.offer(ramp([0.6, 1.0], steps=2))
    arm.tick(2)
    np.testing.assert_array_equal(arm.path[0], HOME)
    assert (arm.path[1] != HOME).all()


def test_a_chunk_is_followed_to_its_end(arm):
    for k in range(16):
        assert arm.offer(ramp([0.6, 1.0])[k:])
        arm.tick(10)
    np.testing.assert_allclose(arm.pose, [0.6, 1.0], atol=0.03)
    assert arm.gate.state == "tracking"
    arm.assert_kept()


@pytest.mark.parametrize(
    ("stage", "why", "offer"),
    [
        ("finite", "not finite", {"positions": [[0.2, np.nan]]}),
        ("finite", "not finite", {"positions": [[np.inf, 0.3]]}),
        ("fresh", "0.30 s old, at most 0.2", {"positions": [[0.2, 0.3]], "age_s": 0.3}),
        ("fresh", "-0.50 s old", {"positions": [[0.2, 0.3]], "age_s": -0.5}),
        ("fresh", "nan s old", {"positions": [[0.2, 0.3]], "age_s": np.nan}),
        ("position", "of knee is far outside", {"positions": [[0.2, 9.0]]}),
    ],
)
def test_a_chunk_that_may_not_be_followed_holds_the_arm(arm, stage, why, offer):
    assert arm.offer(ramp([0.6, 1.0]))
    arm.tick(5)
    assert arm.gate.state == "tracking"
    moved = arm.pose.copy()
    assert not arm.offer(**offer)
    assert (arm.gate.stage, arm.gate.state) == (stage, "holding")
    assert why in arm.gate.why
    arm.tick(30)
    assert np.abs(arm.pose - moved).max() < 0.05  # as far as braking takes
    arm.assert_still()
    assert arm.gate.state == "holding"  # and a good one may follow
    assert arm.offer([arm.pose])
    arm.assert_kept()


def test_a_chunk_that_begins_far_from_where_the_arm_is_measured_is_refused(arm):
    assert not arm.offer([[0.9, 0.3], [0.2, 0.3]])
    assert (arm.gate.stage, arm.gate.why) == (
        "start_deviation", "a chunk begins 0.70 from where hip is",
    )  # fmt: skip
    assert arm.offer([[0.5, 0.3], [0.9, 0.3]])
    # What counts is the target that applies by now, not the first.
    assert not arm.offer([[0.2, 0.3], [0.9, 0.3]], late_s=-0.1)
    arm.assert_still()


def test_targets_somewhat_outside_their_range_are_cut_to_it(arm):
    for _ in range(20):
        arm.offer(np.minimum(arm.pose + [[0.2, 0.2]], [[1.4, 2.5]]))
        arm.tick(10)
    np.testing.assert_allclose(arm.pose, [1.0, 2.0], atol=1e-3)
    assert arm.gate.counts["position"] > 0
    assert "hip" in arm.gate.why


def test_who_falls_silent_is_stopped_and_latched_until_cleared_and_enabled(arm):
    assert arm.offer(ramp([0.9, 1.8]))
    arm.tick(29)
    assert arm.gate.state == "tracking"
    arm.tick(2)
    assert (arm.gate.state, arm.gate.stage) == ("stopping", "command_timeout")
    arm.tick(round(arm.gate.stop_s / DT_S) + 1)
    assert arm.gate.state == "latched_fault"
    sent = len(arm.path)
    assert not arm.offer([arm.pose])
    assert "latched by command_timeout: no chunk for 0.3 s" in arm.gate.enable(arm.now_s, True)
    arm.tick(50)
    assert len(arm.path) == sent  # no command between
    assert arm.gate.reset() == ""
    arm.tick(20)
    assert len(arm.path) == sent
    assert arm.gate.enable(arm.now_s, True) == ""
    arm.tick(2)
    assert len(arm.path) == sent + 2
    arm.assert_kept()


def test_an_arm_that_waits_for_its_first_chunk_may_wait(arm):
    arm.tick(200)
    assert arm.gate.state == "holding"


def test_an_arm_whose_joints_are_not_seen_stops_and_latches(arm):
    assert arm.offer(ramp([0.9, 1.8]))
    arm.tick(5)
    arm.sees = False
    arm.tick(12)
    assert (arm.gate.state, arm.gate.stage) == ("stopping", "joint_state_timeout")
    arm.gate.measure(arm.now_s, np.array([0.2, np.nan]))  # is none
    arm.tick(60)
    assert arm.gate.state == "latched_fault"
    assert "no joint states" in Arm().gate.enable(0.0, True)


def test_an_arm_that_does_not_follow_stops_and_latches(arm):
    arm.follows = False
    for _ in range(20):
        arm.offer([HOME + [0.4, 0.4], HOME + [0.9, 0.9], HOME + [0.9, 1.6]])
        arm.tick(10)
    arm.tick(100)  # it goes back slowly
    assert (arm.gate.state, arm.gate.stage) == ("latched_fault", "tracking_error")
    assert "knee" in arm.gate.why or "hip" in arm.gate.why


@pytest.mark.parametrize("jump_s", [1.0, -1.0])
def test_a_clock_that_jumps_or_stands_still_stops_the_arm(arm, jump_s):
    arm.gate.clocks(arm.now_s, 7.0)
    assert arm.offer(ramp([0.9, 1.8]))
    arm.tick(5)
    arm.gate.clocks(arm.now_s, 7.05)
    arm.gate.clocks(arm.now_s, 7.05 + jump_s, read_s=1.0)  # suspended between two readings
    assert arm.gate.state == "tracking"
    arm.gate.clocks(arm.now_s, 7.05 + jump_s)
    assert (arm.gate.state, arm.gate.stage) == ("stopping", "clock")


@pytest.mark.parametrize(
    ("rate", "state"), [(0.85, "tracking"), (1.15, "tracking"), (0.0, "stopping")]
)
def test_a_simulation_may_run_a_little_slower_but_not_pause(arm, rate, state):
    for k in range(45):
        arm.gate.clocks(arm.now_s, 7.0 + rate * 0.1 * k)
        arm.offer([HOME])
        arm.tick(10)
        if k == 0:
            assert arm.gate.state == "tracking"
        elif k >= 5 and state == "stopping":  # 0.3 s behind by 0.8 s a second
            assert arm.gate.stage == "clock"
            return
    assert arm.gate.state == state


def test_an_estop_brings_to_rest_within_the_stated_time_and_stays(arm):
    assert arm.offer(ramp([0.9, 1.8], steps=4))
    arm.tick(15)
    arm.gate.estop("pressed")
    begun = len(arm.path)
    arm.tick(round(arm.gate.stop_s / DT_S) + 1)
    assert arm.gate.state == "latched_fault"
    assert (len(arm.path) - begun) * DT_S <= arm.gate.stop_s + 2 * DT_S
    arm.gate.enable(arm.now_s, True)
    arm.offer(ramp([0.9, 1.8]))
    arm.assert_still()
    arm.assert_kept()


def test_an_estop_of_a_disarmed_arm_latches_too():
    arm = Arm()
    arm.tick()
    arm.gate.estop("pressed")
    assert "latched by e-stop: pressed" in arm.gate.enable(arm.now_s, True)


def test_an_estop_while_it_disarms_still_latches(arm):
    arm.offer(ramp([0.9, 1.8], steps=4))
    arm.tick(15)
    assert arm.gate.enable(arm.now_s, False) == ""
    arm.tick()
    arm.gate.estop("pressed")
    arm.tick(60)
    assert arm.gate.state == "latched_fault"


def test_who_disarms_comes_to_rest_first(arm):
    arm.offer(ramp([0.9, 1.8], steps=4))
    arm.tick(15)
    assert arm.gate.enable(arm.now_s, False) == ""
    assert "still coming to rest" in arm.gate.enable(arm.now_s, True)
    arm.tick(60)
    assert arm.gate.state == "disabled"
    arm.assert_kept()
    arm.assert_still()


def test_without_the_deadman_switch_the_arm_holds():
    arm = Arm(replace(CONFIG, deadman=True))
    arm.arm()
    assert not arm.offer(ramp([0.9, 1.8]))
    assert arm.gate.stage == "deadman"
    arm.gate.press(arm.now_s, True)
    assert arm.offer(ramp([0.9, 1.8]))
    arm.tick(20)
    arm.gate.press(arm.now_s, False)
    arm.tick(40)
    assert arm.gate.state == "holding"
    arm.assert_still()
    arm.gate.press(arm.now_s, True)
    assert arm.offer([arm.pose])


def test_a_persons_chunk_takes_the_policys_place_while_it_is_fresh(arm):
    assert arm.offer(ramp([0.6, 1.0]))
    assert arm.offer([HOME], source="teleop")
    assert not arm.offer(ramp([0.6, 1.0]))
    assert arm.gate.source == "teleop"
    arm.tick(20)
    np.testing.assert_allclose(arm.pose, HOME, atol=0.01)


def test_an_arm_that_sags_is_commanded_from_where_it_was_held(arm):
    arm.offer([HOME + 0.1] * 2)
    arm.tick(25)
    arm.gate.enable(arm.now_s, False)
    arm.tick(60)
    last = arm.path[-1]
    arm.pose = last - 0.04
    arm.tick()
    assert arm.gate.enable(arm.now_s, True) == ""
    arm.tick()
    np.testing.assert_array_equal(arm.path[-1], last)
    arm.gate.enable(arm.now_s, False)
    arm.tick(5)
    arm.pose = last - 0.2  # moved by hand
    arm.tick()
    arm.gate.enable(arm.now_s, True)
    arm.tick()
    np.testing.assert_allclose(arm.path[-1], last - 0.2)


def test_an_arm_outside_its_range_is_not_enabled():
    arm = Arm()
    arm.pose = np.array([0.2, 2.1])
    arm.tick()
    assert "knee is outside its range" in arm.gate.enable(arm.now_s, True)
    arm.pose = np.array([0.2, 2.04])  # no more than an arm sags
    arm.tick()
    assert arm.gate.enable(arm.now_s, True) == ""


class Wall:
    """What hip may not pass."""

    def __init__(self, at: float) -> None:
        self.at, self.begun, self.ways = at, [], []

    def begin(self, pose):
        self.begun.append(pose)

    def hit(self, way):
        self.ways.append(way)
        return "hip would touch the wall" if (way[:, 0] > self.at).any() else ""


def test_before_something_collides_the_arm_stands_and_then_follows_a_better_chunk():
    wall = Wall(0.5)
    arm = Arm(obstacles=wall)
    arm.arm()
    for k in range(16):
        arm.offer(ramp([0.9, 0.9])[k:])
        arm.tick(10)
    assert arm.gate.counts["collision"] > 0
    assert (arm.gate.stage, arm.gate.why) == ("collision", "hip would touch the wall")
    assert np.array(arm.path)[:, 0].max() <= wall.at + 1e-9
    assert arm.pose[0] > wall.at - 0.1
    for _ in range(16):
        assert arm.offer(arm.pose + [[0.0, 0.0], [-0.02, 0.02]])
        arm.tick(10)
    assert arm.gate.state == "tracking"
    assert arm.pose[0] < wall.at - 0.1
    arm.assert_kept()


def test_what_a_chunk_wants_later_is_followed_once_it_is_free():
    arm = Arm(obstacles=Wall(HOME[0]))
    arm.arm()
    arm.offer(HOME + [[0.05, 0.0], [0.05, 0.0], [-0.1, 0.1]])
    arm.tick(8)
    np.testing.assert_array_equal(arm.pose, HOME)
    assert (arm.gate.state, arm.gate.stage) == ("tracking", "collision")
    arm.tick(21)
    assert arm.pose[0] < HOME[0] - 0.02
    assert np.array(arm.path)[:, 0].max() <= HOME[0]
    arm.assert_kept()


def test_the_way_that_is_judged_begins_where_the_arm_is_and_is_what_braking_does():
    wall = Wall(np.inf)
    arm = Arm(obstacles=wall)
    arm.arm()
    np.testing.assert_array_equal(wall.begun, [HOME])
    arm.offer(ramp([0.9, 1.8], steps=4))
    arm.tick(15)
    way = wall.ways[-1]
    np.testing.assert_array_equal(way[:2], arm.path[-2:])
    arm.gate.estop("pressed")
    begun, judged = len(arm.path), len(wall.ways)
    arm.tick(len(way))
    np.testing.assert_array_equal(arm.path[begun:], way[2:])
    assert len(wall.ways) == judged


ANY = st.one_of(st.floats(-3.0, 3.0), st.floats(allow_nan=True, allow_infinity=True, width=64))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["offer"] * 6 + ["teleop", "enable", "disable", "estop", "reset", "blind",
                         "see", "clock", "speed_scaling", "speed_scaling"]),
        st.lists(st.tuples(ANY, ANY), min_size=1, max_size=4),
        st.one_of(st.floats(-0.3, 0.3), st.just(float("nan"))),
        st.integers(0, 25),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.timeout(7200)  # of the long run
@given(events=EVENTS, monitored=st.booleans())
def test_limits_hold_for_any_chunk_any_pace_and_any_timing(events, monitored):
    """Run with `--hypothesis-profile long` for 100,000 examples."""
    # Wide apart, so that the limits alone hold it.
    arm = Arm(
        replace(
            CONFIG,
            max_start_deviation=10.0,
            max_tracking_error=10.0,
            monitored=monitored,
            speed_scaling_timeout_s=0.15,
        )
    )
    arm.arm()
    latched = False
    for kind, points, age_s, ticks in events:
        if kind in ("offer", "teleop"):
            source = "policy" if kind == "offer" else "teleop"
            arm.offer(points, age_s=age_s, source=source, late_s=-age_s)
        elif kind in ("enable", "disable"):
            arm.gate.enable(arm.now_s, kind == "enable")
        elif kind == "estop":
            arm.gate.estop("any")
            latched = True
        elif kind == "reset":
            latched = latched and arm.gate.reset() != ""
        elif kind == "clock":
            arm.gate.clocks(arm.now_s, float(points[0][0]))
        elif kind in ("blind", "see"):
            arm.sees = kind == "see"
        elif kind == "speed_scaling":
            arm.gate.scale_speed(arm.now_s, float(points[0][0]))
        sent = len(arm.path)
        before = arm.pose.copy()
        arm.tick(ticks)
        if latched and arm.gate.state == "latched_fault" and len(arm.path) == sent:
            np.testing.assert_array_equal(arm.pose, before)
    arm.assert_kept()
    assert np.isfinite(np.array([HOME, *arm.path])).all()
    if latched:
        arm.tick(60)
        assert arm.gate.state == "latched_fault"
        arm.assert_still()
