"""What an arm behind ROS 2 cannot do is refused before a node is started."""

import dataclasses

import pytest

from sim import vec_env
from sim.backends import ros
from sim.vec_env import load_robot


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command_timeout_s": 0.0}, "backend.command_timeout_s: got 0.0, expected 0.02 to 10"),
        ({"joint_state_timeout_s": float("nan")}, "backend.joint_state_timeout_s: got nan"),
        (
            {"auto_resume_stages": ("e-stop",)},
            "backend.auto_resume_stages: got e-stop, expected some of command_timeout",
        ),
        ({"workers": 2}, "backend ros: got 2 workers and randomize True, expected 1 and True"),
        ({"randomize": False}, "there is one arm, and its episodes differ"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ros.Config(**changes)


def test_there_is_one_arm():
    with pytest.raises(ValueError, match="num_envs: got 2, expected 1: there is one arm"):
        vec_env.make("reach", 2, backend=ros.Config())


def test_things_that_lie_about_have_to_be_put_back_by_somebody():
    with pytest.raises(ValueError, match="got 'arm' for push, whose objects"):
        vec_env.make("push", 1, backend=ros.Config(reset="arm"))


def test_a_robot_that_the_nodes_would_not_find_is_refused():
    robot = load_robot("so101")
    other = dataclasses.replace(robot, home=(0.1, *robot.home[1:]))
    with pytest.raises(ValueError, match="differs from vla/robots/so101.py"):
        vec_env.make("reach", 1, robot=other, backend="ros")
