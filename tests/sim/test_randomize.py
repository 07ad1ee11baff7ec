"""Variation between episodes: bounded, reversible, from the generator alone."""

import copy

import mujoco
import numpy as np
import pytest

from sim.core import randomize
from sim.core.scene import compile_scene
from sim.vec_env import load_robot, load_task


@pytest.fixture
def nominal():
    return compile_scene(load_task("pick_place"), load_robot("so101")).model


def test_the_same_generator_state_draws_the_same_variation(nominal):
    a, b = (randomize.draw(np.random.default_rng(4), nominal) for _ in range(2))
    np.testing.assert_array_equal(a.camera_quat, b.camera_quat)
    np.testing.assert_array_equal(a.surface_rgb, b.surface_rgb)
    assert (a.friction_gain, a.mass_gain) == (b.friction_gain, b.mass_gain)


def test_variations_stay_within_their_bounds(nominal):
    for seed in range(20):
        variation = randomize.draw(np.random.default_rng(seed), nominal)
        moved = np.abs(variation.camera_pos_m - nominal.cam_pos).max()
        assert 0.0 < moved <= randomize.CAMERA_POS_M
        # The angle between two orientations is 2 acos |<p, q>|.
        cosine = np.abs((variation.camera_quat * nominal.cam_quat).sum(axis=1)).clip(0, 1)
        assert (2 * np.arccos(cosine)).max() <= randomize.CAMERA_ANGLE_RAD + 1e-6
        np.testing.assert_allclose(np.linalg.norm(variation.light_dir, axis=1), 1.0)


def test_mass_and_friction_change_by_their_factors_and_the_nominal_model_does_not(nominal):
    model, before = copy.copy(nominal), copy.copy(nominal)
    variation = randomize.draw(np.random.default_rng(0), nominal)
    randomize.apply(model, nominal, variation, mujoco.MjData(nominal))
    cube, forearm = model.body("cube").id, model.body("forearm").id
    assert model.body_mass[cube] == pytest.approx(nominal.body_mass[cube] * variation.mass_gain)
    assert model.body_mass[forearm] == nominal.body_mass[forearm]
    table = model.geom("table").id
    expected = nominal.geom_friction[table, 0] * variation.friction_gain
    assert model.geom_friction[table, 0] == pytest.approx(expected)
    for name in ("geom_rgba", "body_mass", "cam_pos", "light_diffuse", "geom_friction"):
        np.testing.assert_array_equal(getattr(nominal, name), getattr(before, name))


def test_a_second_variation_leaves_nothing_of_the_first(nominal):
    once, twice = copy.copy(nominal), copy.copy(nominal)
    first, second = (randomize.draw(np.random.default_rng(s), nominal) for s in (1, 2))
    data = mujoco.MjData(nominal)
    randomize.apply(twice, nominal, first, data)
    randomize.apply(twice, nominal, second, data)
    randomize.apply(once, nominal, second, data)
    for name in ("geom_rgba", "body_mass", "body_inertia", "cam_quat", "dof_invweight0"):
        np.testing.assert_allclose(getattr(once, name), getattr(twice, name), rtol=1e-12)
