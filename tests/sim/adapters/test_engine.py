"""Adapters of engines: orders of quaternions and frames, by numbers worked out by hand."""

import mujoco
import numpy as np
import pytest

from sim.adapters import _engine

QUARTER = np.sqrt(0.5)
ABOUT_Z = np.array([QUARTER, 0.0, 0.0, QUARTER])
"""A quarter turn about z, wxyz."""


def test_a_quarter_turn_about_z_in_either_order():
    np.testing.assert_allclose(_engine.to_xyzw(ABOUT_Z), [0.0, 0.0, QUARTER, QUARTER])
    np.testing.assert_allclose(_engine.to_wxyz(np.array([0.0, 0.0, QUARTER, QUARTER])), ABOUT_Z)


def test_a_quarter_turn_about_z_takes_x_to_y_and_back():
    x, y = np.eye(3)[:2]
    np.testing.assert_allclose(_engine.turn(ABOUT_Z, x), y, atol=1e-12)
    np.testing.assert_allclose(_engine.turn_back(ABOUT_Z, y), x, atol=1e-12)


def test_two_quarter_turns_are_half_a_turn():
    np.testing.assert_allclose(_engine.times(ABOUT_Z, ABOUT_Z), [0, 0, 0, 1], atol=1e-12)


def test_spin_about_a_bodys_own_x_is_about_the_worlds_y_after_a_quarter_turn():
    qpos = np.concatenate([[1.0, 2.0, 3.0], ABOUT_Z])[None]
    qvel = np.array([[0.1, 0.2, 0.3, 5.0, 0.0, 0.0]])
    root = _engine.free_to_root(qpos, qvel)
    np.testing.assert_allclose(root[0, :10], [1, 2, 3, *ABOUT_Z, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(root[0, 10:], [0, 5, 0], atol=1e-12)
    back = _engine.root_to_free(root)
    np.testing.assert_allclose(back[0], qpos)
    np.testing.assert_allclose(back[1], qvel, atol=1e-12)


def test_turns_are_those_of_mujoco():
    rng = np.random.default_rng(0)
    quats = rng.standard_normal((20, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    vectors = rng.standard_normal((20, 3))
    for quat, other, vector in zip(quats, quats[::-1], vectors, strict=True):
        turned, product = np.empty(3), np.empty(4)
        mujoco.mju_rotVecQuat(turned, vector, quat)
        mujoco.mju_mulQuat(product, quat, other)
        np.testing.assert_allclose(_engine.turn(quat, vector), turned, atol=1e-12)
        np.testing.assert_allclose(_engine.times(quat, other), product, atol=1e-12)


OPTIONS = {
    "joints": [
        {"name": "finger", "type": "hinge", "damping": 0.5, "armature": 0.01},
        {"name": "other", "type": "hinge", "damping": 0.25, "armature": 0.02},
        {"name": "cube", "type": "free", "damping": 0.0, "armature": 0.0},
    ],
    "actuators": [{"name": "a", "joint": "finger", "kp": 8.0, "kv": 0.4, "force": 3.0}],
    "coupled": [{"follower": "other", "leader": "finger", "leader_zero": 0.1,
                 "follower_zero": 0.2, "polynomial": [0.0, 2.0, 0.0, 0.0, 0.0]}],
}  # fmt: skip


def test_a_joint_that_follows_goes_where_the_other_is_to_go():
    targets = _engine.joint_targets(OPTIONS, np.array([[0.1], [0.6]]))
    np.testing.assert_allclose(targets["finger"], [0.1, 0.6])
    np.testing.assert_allclose(targets["other"], [0.2, 1.2])


def test_a_drive_damps_for_its_joint_too():
    drives = _engine.drives(OPTIONS)
    assert drives["finger"] == {"stiffness": 8.0, "damping": 0.9, "force": 3.0, "armature": 0.01}
    assert drives["other"] == {"stiffness": 8.0, "damping": 0.65, "force": 3.0, "armature": 0.02}
    assert set(drives) == {"finger", "other"}


class Still:
    """A simulator in which nothing moves."""

    varies, draws = frozenset({"body_mass"}), False

    def step(self, arrays, substeps, active):
        arrays["qpos"][0] = np.nan

    def write(self, rows, arrays, varied):
        arrays["qpos"][rows] = 0.0

    def read_state(self, qpos, qvel):
        pass

    def overran(self):
        return np.array([False, True, False])


def test_a_world_that_went_wrong_stays_so_until_it_is_written():
    options = {"worlds": 3, "nq": 2, "nv": 2, "nu": 1, "nmocap": 0, "varied": {"body_mass": [4]}}
    adapter = _engine.EngineAdapter(options, Still())
    arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in adapter.fields().items()}
    assert arrays["varied_body_mass"].shape == (3, 4)
    assert "images" not in arrays
    adapter.bind(arrays)
    adapter.call("step", {"substeps": 1})
    assert arrays["faults"].tolist() == [True, True, False]
    arrays["rows"][:] = 1
    adapter.call("write", {"count": 1, "varied": []})
    assert arrays["faults"].tolist() == [True, False, False]
    with pytest.raises(ValueError, match="command: got 'jump', expected write, step or render"):
        adapter.call("jump", {})
