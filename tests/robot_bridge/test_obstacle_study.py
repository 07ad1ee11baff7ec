"""An arm that is held by force is not pressed on once it rests, and starts again without a step."""

import pytest

from benchmarks.robot_bridge import obstacle_study
from benchmarks.robot_bridge.obstacle_study import Case, Rig, StudyArgs
from sim.vec_env import load_robot


@pytest.fixture(scope="module", params=obstacle_study.ROBOTS)
def rig(request) -> Rig:
    return Rig(load_robot(request.param))


@pytest.mark.parametrize(
    "case",
    [Case(0, 1.0, "stop", 0), Case(1, 0.5, "stop", 1), Case(3, 1.0, "stop", 2),
     Case(0, 0.5, "box", 0), Case(0, 1.0, "box", 2), Case(3, 1.0, "box", 3),
     Case(1, 1.0, "box", 2), Case(2, 1.0, "box", 3)],
)  # fmt: skip
def test_an_arm_that_is_held_latches_rests_where_it_is_and_starts_without_a_step(rig, case):
    outcome = rig.play(case)
    assert outcome is not None
    assert outcome.stage == "tracking_error"
    assert outcome.rest <= obstacle_study.FURTHEST
    assert outcome.first <= obstacle_study.FURTHEST
    assert outcome.step <= 1 + 1e-6
    assert outcome.step > 0.5  # it was driven back
    assert not outcome.sprung > obstacle_study.FURTHEST
    assert outcome.peak > outcome.lag
    assert outcome.peak_force == pytest.approx(1.0)


def test_an_arm_that_nothing_holds_does_not_latch_for_it(rig):
    outcome = rig.play(Case(1, 1.0, None, 0))
    assert outcome is not None
    assert outcome.stage == "command_timeout"  # the plan has ended
    assert not obstacle_study.kept(outcome)


def test_what_is_beyond_a_bar_counts(rig):
    good = rig.play(Case(0, 1.0, "stop", 0))
    assert good is not None
    assert obstacle_study.kept(good)
    for wrong in ({"rest": 0.11}, {"step": 1.1}, {"grip": 0.1}, {"stage": ""}):
        assert not obstacle_study.kept(good._replace(**wrong))


def test_every_joint_but_the_gripper_is_held_at_every_speed():
    robot = load_robot("so101")
    found = list(obstacle_study.cases(robot, StudyArgs(seeds=2)))
    assert {case.joint for case in found} == {0, 1, 2, 3, 4}
    assert len(found) == 5 * 3 * 4 * 2
