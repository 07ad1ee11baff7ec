"""The way back of an arm: along the way it came, slowly, and home at last."""

import numpy as np
import pytest

from robot_bridge.motion.retrace import retrace

HOME = np.zeros(2)
STRIDE = np.array([0.1, 0.2])


def test_it_passes_where_the_arm_came_by_and_ends_at_home():
    path = np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 0.8]])
    targets = retrace(path, HOME, STRIDE)
    assert np.abs(targets[-1] - HOME).max() == 0
    assert (np.abs(targets - [0.5, 0.0]).max(1) < 0.1).any()  # no short cut past the corner
    assert len(targets) == 9  # four control steps of one joint, then five of the other


def test_no_joint_moves_more_than_its_stride_in_a_control_step():
    rng = np.random.default_rng(0)
    path = rng.uniform(-1, 1, (20, 2))
    targets = retrace(path, HOME, STRIDE)
    moved = np.abs(np.diff(np.concatenate([path[-1:], targets]), axis=0))
    assert (moved <= STRIDE + 1e-9).all()


@pytest.mark.parametrize("path", [np.zeros((1, 2)), np.zeros((30, 2))])
def test_an_arm_that_stood_at_home_is_told_to_be_there(path):
    np.testing.assert_array_equal(retrace(path, HOME, STRIDE), [[0.0, 0.0]])


def test_standing_still_on_the_way_takes_no_time():
    path = np.array([[0.0, 0.0], [0.3, 0.0]])
    waited = np.repeat(path, 50, axis=0)
    assert len(retrace(waited, HOME, STRIDE)) == len(retrace(path, HOME, STRIDE)) == 3
