"""Both arms are timed with and without the collision stage, which acts."""

import numpy as np

from benchmarks.robot_bridge import collision_study
from benchmarks.robot_bridge.collision_study import StudyArgs
from vla.contracts import registry


def test_the_stage_acts_where_it_is_on_and_every_tick_is_timed():
    robot = registry.load("vla.robots", "so101").SPEC
    args = StudyArgs(ticks=600)
    plain, none = collision_study.ticks_ms(robot, args, judges=False)
    judged, acted = collision_study.ticks_ms(robot, args, judges=True)
    assert plain.shape == judged.shape == (600,)
    assert none == 0
    assert acted > 0
    assert np.isfinite(judged).all()
