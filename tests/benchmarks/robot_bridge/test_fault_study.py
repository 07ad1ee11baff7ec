"""Faults over real DDS break no limit, and stop the arm in the time that is stated."""

import numpy as np
import pytest

from benchmarks.robot_bridge import camera_faults, chunk_faults, controller_replay, fault_study
from benchmarks.robot_bridge.fault_report import Tally
from robot_bridge.motion import limits
from vla.contracts import registry

ROBOT = registry.load("vla.robots", "so101").SPEC


MOVING = list(chunk_faults.MOVING)[-2:]
EVENTS = [
    "e-stop", "policy killed", "safety node killed", "safety node interrupted",
    "joint states silent", "clock jumps ahead",
]  # fmt: skip
OTHERS = [kind for kind in fault_study.EVENTS if kind not in EVENTS]


@pytest.mark.ros
@pytest.mark.parametrize(
    "events", [EVENTS, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"]
)
def test_a_schedule_of_each_fault(events, tmp_path):
    kinds = (*MOVING, *events)
    tally = fault_study.study(len(kinds), 0, tmp_path, slack_s=0.5, kinds=kinds)
    assert list(tally.schedules) == list(kinds)
    assert tally.commands > 30 * len(kinds)
    assert tally.beyond == []
    assert tally.worst["jerk"] > 0.5  # it was asked for more than it may
    assert tally.late == []
    assert set(tally.stops_s) == set(events) - set(fault_study.CLOCKS)


@pytest.mark.ros
@pytest.mark.slow
def test_a_policy_whose_cameras_fail_comes_to_rest(arm_policy, tmp_path):
    tally = Tally()
    camera_faults.play(arm_policy, 2, 1, tmp_path, tally, slack_s=1.0)
    assert list(tally.schedules) == ["all cameras silent", "camera frozen"]
    assert tally.commands > 500
    assert (sum(tally.violations.values()), tally.late) == (0, [])


def test_every_fault_makes_something_else_of_a_good_chunk():
    rng = np.random.default_rng(0)
    path = chunk_faults.Path(ROBOT, rng, np.array(ROBOT.home))
    path.chunk(2)
    good = path.chunk(3)
    for name, fault in {**chunk_faults.STOPPING, **chunk_faults.MOVING}.items():
        made = [repr(one) for one in fault(good, rng, path)]
        assert made != [repr(good)] or name == "dropped", name
    assert np.isfinite(np.array(good.positions)).all()


def test_a_late_stop_and_a_broken_limit_are_found():
    times_s = np.arange(100) / 100.0
    still = np.tile(np.array(ROBOT.home), (100, 1))
    moving = still.copy()
    moving[60:, 0] += 1e-5 * np.arange(40)
    tally = Tally()

    def shares(path):
        return controller_replay.shares(path, 100.0, limits.of_spec(ROBOT))

    tally.keep("silence", 7, 100, shares(still))
    tally.stop("silence", 7, times_s, still, 0.0, 0.5)
    assert (tally.late, sum(tally.violations.values())) == ([], 0)
    tally.keep("silence", 7, 100, shares(moving))
    tally.stop("silence", 7, times_s, moving, 0.0, 0.5)
    assert tally.late == ["schedule 7, silence: at rest after 0.99 s, not 0.50"]
    tally.stop("camera frozen", 8, times_s, moving, 0.0, 0.5, still=1e-3)
    assert len(tally.late) == 1
    broken = still.copy()
    broken[50:, 0] += 1.0
    tally.keep("wild", 7, 100, shares(broken))
    assert tally.violations["velocity"] == 1
