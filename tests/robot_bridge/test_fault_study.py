"""Faults over real DDS break no limit, and stop the arm in the time that is stated."""

import numpy as np
import pytest

from robot_bridge import fault_study, limits, sabotage
from vla.contracts import registry

ROBOT = registry.load("vla.robots", "so101").SPEC


@pytest.mark.ros
def test_a_few_schedules_of_wild_chunks_estop_and_a_killed_policy(tmp_path):
    first = [*sabotage.STOPPING, *sabotage.MOVING, *fault_study.EVENTS].index("from end to end")
    tally = fault_study.study(5, first, tmp_path, slack_s=0.5)
    assert list(tally.schedules) == [
        "from end to end",
        "burst",
        "dropped",
        "e-stop",
        "policy killed",
    ]
    assert tally.commands > 300
    assert sum(tally.violations.values()) == 0
    assert tally.worst["jerk"] > 0.5  # it was asked for more than it may
    assert tally.late == []
    assert set(tally.stops_s) == {"e-stop", "policy killed"}


def test_every_fault_makes_something_else_of_a_good_chunk():
    rng = np.random.default_rng(0)
    path = sabotage.Path(ROBOT, rng, np.array(ROBOT.home))
    good = path.chunk(3)
    for name, fault in {**sabotage.STOPPING, **sabotage.MOVING}.items():
        made = [repr(one) for one in fault(good, rng, path)]
        assert made != [repr(good)] or name == "dropped", name
    assert np.isfinite(np.array(good.positions)).all()


def test_a_late_stop_and_a_broken_limit_are_found():
    allowed = limits.of_spec(ROBOT)
    times_s = np.arange(100) / 100.0
    still = np.tile(np.array(ROBOT.home), (100, 1))
    moving = still.copy()
    moving[60:, 0] += 1e-5 * np.arange(40)
    tally = fault_study.Tally()
    fault_study._judge(tally, "silence", 7, times_s, still, allowed, 0.0, 0.5)
    assert (tally.late, sum(tally.violations.values())) == ([], 0)
    fault_study._judge(tally, "silence", 7, times_s, moving, allowed, 0.0, 0.5)
    assert tally.late == ["schedule 7, silence: at rest after 0.99 s, not 0.50"]
    broken = still.copy()
    broken[50:, 0] += 1.0
    fault_study._judge(tally, "wild", 8, times_s, broken, allowed, 0.0, 0.5)
    assert tally.violations["velocity"] == 1
