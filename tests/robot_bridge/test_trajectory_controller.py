"""The emulated joint_trajectory_controller, and the gate's limits at its rates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.robot_bridge import controller_replay
from robot_bridge.motion import spline
from robot_bridge.safety.gate import Gate
from robot_bridge.sim_arm import trajectory_controller
from robot_bridge.sim_arm.trajectory_controller import State, Trajectory, TrajectoryController
from tests.robot_bridge.test_gate import ARM, CONFIG, DT_S, HOME, HZ, replace

LEAD = 4
FROM_DESIRED = (False, True)


def state(p, v=0.0, a=0.0) -> State:
    return State(np.array([p]), np.array([v]), np.array([a]))


@pytest.mark.parametrize(("has_v", "has_a", "degree"), [(0, 0, 1), (1, 0, 3), (1, 1, 5)])
def test_it_takes_the_polynomial_that_its_points_determine(has_v, has_a, degree):
    curve = np.polynomial.Polynomial([0.3, -1.0, 2.0, 0.5, -0.7, 0.2][: degree + 1])
    begin, end = (state(curve(t), curve.deriv()(t), curve.deriv(2)(t)) for t in (0.0, 0.8))
    for t in (0.0, 0.1, 0.5, 0.8):
        got = trajectory_controller.interpolate(
            2.0, begin, 2.8, end, 2.0 + t, bool(has_v), bool(has_a)
        )
        wanted = [curve(t), curve.deriv()(t), curve.deriv(2)(t)]
        np.testing.assert_allclose([x[0] for x in got], wanted, atol=1e-9)


def test_the_way_to_a_point_ahead_begins_where_the_option_says():
    path = Trajectory(times_s=np.array([0.1]), positions=np.array([[1.0]]), stamp_s=0.0)
    for from_desired, wanted in ((True, 0.5), (False, 0.4)):
        controller = TrajectoryController(np.zeros(1), interpolate_from_desired_state=from_desired)
        controller.receive(path)
        controller.update(0.0, np.array([-0.2]))
        assert controller.update(0.05, np.zeros(1)).p[0] == pytest.approx(wanted)


def test_knots_are_a_spline_of_which_any_two_make_the_same_cubic():
    path = np.random.default_rng(0).normal(size=(9, 2))
    points = spline.knots(path, DT_S)
    rows = [State(*row) for row in zip(*points, strict=True)]
    for a, b, jerk in zip(rows[:-1], rows[1:], np.diff(path, 3, axis=0) / DT_S**3, strict=True):
        for share in (0.0, 0.3, 1.0):
            cubic, quintic = (
                trajectory_controller.interpolate(0.0, a, DT_S, b, share * DT_S, True, has_a)
                for has_a in (False, True)
            )
            np.testing.assert_allclose(cubic.p, quintic.p, atol=1e-9)
            np.testing.assert_allclose(cubic.a, a.a + share * DT_S * jerk, rtol=1e-6)


class Play:
    """A gate whose trajectories are recorded with their times of arrival."""

    def __init__(self) -> None:
        self.gate = Gate(replace(CONFIG, lead_ticks=LEAD), ARM)
        self.tick_number = 0
        self.messages: list[tuple[float, Trajectory]] = []
        self.gate.measure(0.0, HOME)
        assert self.gate.enable(0.0, True) == ""

    @property
    def now_s(self) -> float:
        return self.tick_number * DT_S

    def tick(self, late_s: float = 0.0, missed: int = 0, instead: bool = False) -> None:
        """Make a tick whose message is so late on its way, after others that were missed."""
        self.tick_number += 1 + missed
        # An arm that is where the reference is.
        self.gate.measure(self.now_s, self.gate.path[1])
        if self.gate.tick(self.now_s, missed) is None:
            return
        if instead:
            self.gate.brake_instead()
        points = self.gate.trajectory()
        path = Trajectory(
            times_s=DT_S * np.arange(len(points[0])), positions=points[0], velocities=points[1],
            accelerations=points[2], stamp_s=(self.tick_number - 1) * DT_S,
        )  # fmt: skip
        arrival_s = self.now_s + late_s
        if self.messages:
            arrival_s = max(arrival_s, self.messages[-1][0])
        self.messages.append((arrival_s, path))

    def offer(self, positions) -> None:
        times_s = self.now_s + np.arange(len(positions)) / HZ
        self.gate.offer(self.now_s, "policy", times_s, np.array(positions), 0.0)

    def assert_kept(self) -> np.ndarray:
        """The reference keeps every limit and ends at rest, at all rates and options."""
        end_s = self.now_s + self.gate.stop_s + self.gate.lead_s + 0.1
        for from_desired in FROM_DESIRED:
            for rate_hz in controller_replay.RATES_HZ:
                path = controller_replay.reference(
                    self.messages, HOME, rate_hz, end_s, interpolate_from_desired_state=from_desired
                )
                found = controller_replay.shares(path, rate_hz, ARM)
                assert found.pop("position") < 1e-8, rate_hz
                assert max(found.values()) < 1 + 1e-6, (rate_hz, found)
                assert np.ptp(path[-int(0.05 * rate_hz) :], axis=0).max() < 1e-12
        return path


POSES = st.lists(st.tuples(st.floats(-1.5, 1.5), st.floats(-1, 2.5)), min_size=2, max_size=8)
STEP = st.tuples(
    POSES, st.integers(1, 12), st.sampled_from([0.0, 0.0, 0.001, 0.004, 0.012, 0.017]),
    st.sampled_from([0, 0, 0, 1, 2, 7, 60]), st.booleans(),
)  # fmt: skip


@given(steps=st.lists(STEP, min_size=1, max_size=6))
@settings(max_examples=10)
def test_whatever_comes_and_however_late_the_reference_keeps_every_limit(steps):
    """Ticks are missed, given up as too late, or come late, and at the end none comes any more."""
    play = Play()
    for poses, ticks, late_s, missed, instead in steps:
        play.offer(poses)
        play.tick(late_s, missed, instead)
        for _ in range(ticks):
            play.tick(late_s)
    play.assert_kept()


def test_a_node_that_ends_at_full_speed_leaves_an_arm_that_brakes():
    play = Play()
    for k in range(12):
        play.offer(HOME + np.linspace(0.02 * k, 0.02 * k + 0.6, 4)[:, None] * np.ones(2))
        play.tick()
    assert np.abs(play.gate.motion.v).max() > 1
    path = play.assert_kept()
    assert np.abs(path[-1] - HOME).max() > 0.02
