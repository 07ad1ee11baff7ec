"""Our tasks on Newton itself, in the environment that `vla env add newton` makes."""

import contextlib

import numpy as np
import pytest

from sim import vec_env
from sim.backends import newton
from sim.env_server import suite_installs
from tests.sim.isaac import stand

there = suite_installs.state("newton") == "installed"
real = pytest.mark.skipif(not there, reason="Newton is not installed: vla env add newton")


def test_without_its_environment_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("MNEME_ENVS", str(tmp_path))
    with pytest.raises(ValueError, match="newton: not installed; run `vla env add newton`"):
        vec_env.make("reach", 1, backend="newton")
    with pytest.raises(ValueError, match="contacts: got 0, expected at least 1"):
        vec_env.make("reach", 1, backend=newton.Config(contacts=0))


@real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", ["reach", "pick_place", "drawer"])
def test_the_expert_succeeds_where_it_does_on_mujoco(task):
    with (
        contextlib.closing(vec_env.make(task, 8, backend="newton")) as env,
        contextlib.closing(vec_env.make(task, 8)) as ours,
    ):
        seen, reference = env.reset(0), ours.reset(0)
        # Newton keeps 32 bits of a position: an edge may fall to the next shade.
        assert np.mean(seen.images != reference.images) < 1e-4
        theirs, here = stand.play(env, 16), stand.play(ours, 16)
        assert np.mean(list(theirs.values())) == np.mean(list(here.values())) == 1.0


@real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_newton_goes_on_as_mujoco_does_and_draws_what_it_shows():
    config = newton.Config(renderer="engine", randomize=False)
    with (
        contextlib.closing(vec_env.make("pick_place", 2, backend=config)) as env,
        contextlib.closing(vec_env.make("pick_place", 2, randomize=False)) as ours,
    ):
        seen, reference = env.reset(0), ours.reset(0)
        assert stand.alike(seen.images, reference.images).min() > 0.9
        home = np.tile(np.array(env.spec.robot.home, np.float32), (2, 1))
        target = home + np.float32(0.1)
        for _ in range(3):
            theirs, here = env.step(target), ours.step(target)
        np.testing.assert_allclose(theirs.obs.proprio, here.obs.proprio, atol=2e-3)
