"""Joint states are merged by name, each with its own age; what is damaged is refused whole."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_bridge.sensing.joint_states import JointStates, missing

NAMES = ("pan", "lift", "grip")


@pytest.fixture
def states() -> JointStates:
    return JointStates(NAMES, 0.2)


def test_an_arm_and_a_gripper_that_speak_apart_are_one_pose_with_an_age_each(states):
    states.take(10.0, 0.01, ["lift", "pan"], [1.0, 2.0])
    assert np.isnan(states.pose[2])
    states.take(10.1, 0.0, ["a_joint_of_another", "grip"], [9.0, 3.0])
    np.testing.assert_array_equal(states.pose, [2.0, 1.0, 3.0])
    np.testing.assert_allclose(states.times_s, [9.99, 9.99, 10.1])
    assert missing(NAMES, 10.25 - states.times_s, 0.2) == "no joint states of pan, lift for 0.2 s"
    assert missing(NAMES, 10.15 - states.times_s, 0.2) == ""
    assert missing(NAMES, 20.0 - states.times_s, 0.2) == "no joint states for 0.2 s"


def test_a_joint_that_was_never_measured_is_missing(states):
    states.take(10.0, 0.0, ["pan", "lift"], [1.0, 2.0])
    assert missing(NAMES, 10.0 - states.times_s, 0.2) == "no joint states of grip for 0.2 s"


def test_old_stamps_make_old_joints_and_an_overtaken_message_changes_nothing(states):
    states.take(10.0, 30.0, NAMES, [1.0, 2.0, 3.0])
    assert missing(NAMES, 10.0 - states.times_s, 0.2) == "no joint states for 0.2 s"
    states.take(10.0, 0.0, NAMES, [4.0, 5.0, 6.0])
    states.take(10.01, 0.05, NAMES, [7.0, 8.0, 9.0])
    np.testing.assert_array_equal(states.pose, [4.0, 5.0, 6.0])


@pytest.mark.parametrize(
    ("age_s", "names", "positions", "said"),
    [
        (0.0, NAMES, [1.0, 2.0], "got 3 joint names and 2 positions"),
        (0.0, ("pan", "pan"), [1.0, 2.0], "joint 'pan' is named twice"),
        (0.0, ("wheel",), [1.0], "got wheel, expected some of pan, lift, grip"),
        (0.0, (), [], "got no joint, expected some of"),
        (0.0, NAMES, [1.0, np.nan, 2.0], "the position of lift is not finite"),
        (-30.0, NAMES, [1.0, 2.0, 3.0], "stamped 30.00 s in the future, at most 0.2; synchronise"),
    ],
)
def test_a_damaged_message_is_refused_whole(states, age_s, names, positions, said):
    with pytest.raises(ValueError, match=said):
        states.take(10.0, age_s, names, positions)
    assert np.isnan(states.pose).all()


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1), st.floats(-1, 1),
            st.lists(st.tuples(st.sampled_from([*NAMES, "other"]), st.floats()), max_size=4),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_whatever_comes_a_pose_has_finite_numbers_of_the_past_or_none(messages):
    states, now_s = JointStates(NAMES, 0.2), 0.0
    for step_s, age_s, joints in messages:
        now_s += step_s
        with contextlib.suppress(ValueError):
            states.take(now_s, age_s, [name for name, _ in joints], [p for _, p in joints])
        seen = np.isfinite(states.times_s)
        assert np.isfinite(states.pose[seen]).all()
        assert np.isnan(states.pose[~seen]).all()
        assert (states.times_s <= now_s).all()
