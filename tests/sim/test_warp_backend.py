"""The mujoco_warp backend: what it refuses, and what becomes of worlds that go wrong."""

import subprocess
import sys

import numpy as np
import pytest

from sim import vec_env
from sim.backends import mujoco_warp
from sim.core.scene import compile_scene
from sim.engines.batch import BatchVecEnv
from sim.engines.engine import State

pytestmark = pytest.mark.timeout(600)  # whoever comes first compiles

TASK = "pick_place"


@pytest.fixture
def parts():
    pytest.importorskip("mujoco_warp")
    config, robot = vec_env.load_task(TASK), vec_env.load_robot(None)
    # The room of the engine's own tests: another would compile anew.
    runner = mujoco_warp.Config(device="cpu", contacts_per_world=12, constraints_per_world=256)
    engine = runner.engine(compile_scene(config, robot), 3)
    env = BatchVecEnv(config, robot, 3, engine)
    yield env, engine
    env.close()


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )


def test_naming_the_backends_and_making_its_configuration_imports_no_warp():
    done = run(
        "import sys\n"
        "from vla.contracts import registry\n"
        "assert 'mujoco_warp' in registry.names('sim.backends')\n"
        "registry.load('sim.backends', 'mujoco_warp').Config()\n"
        "print({'warp', 'mujoco_warp', 'torch'} & set(sys.modules))"
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("package", ["warp", "mujoco_warp"])
def test_a_package_that_is_missing_is_said_in_one_sentence(package):
    done = run(
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from sim import vec_env\n"
        "try:\n"
        "    vec_env.make('reach', 1, backend='mujoco_warp')\n"
        "except ValueError as error:\n"
        "    print(error)"
    )
    expected = f"backend 'mujoco_warp': no module named {package!r}; install it (pip install"
    assert done.stdout.startswith(expected), done.stdout + done.stderr


def test_warp_starts_without_a_word():
    pytest.importorskip("mujoco_warp")
    done = run("import sim.engines.warp_start")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workers": 2}, "workers: got 2, expected 1"),
        ({"contacts_per_world": 0}, "contacts_per_world: got 0, expected at least 1"),
        ({"constraints_per_world": -1}, "constraints_per_world: got -1, expected at least 1"),
    ],
)
def test_what_cannot_be_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        vec_env.make(TASK, 2, backend=mujoco_warp.Config(**settings))


def test_an_episode_whose_world_is_lost_is_cut_short_and_the_next_begins(parts):
    env, engine = parts
    env.reset(2)
    home = np.tile(np.array(env.spec.robot.home, np.float32), (3, 1))
    sound = env.step(home)
    assert not sound.info["fault"].any()
    fields = env._host.fields  # where the worlds stand
    state = {name: getattr(fields, name)[1:2].copy() for name in State.__dataclass_fields__}
    state["qvel"][:] = np.nan
    engine.write(np.array([1]), State(**state), {})
    with pytest.warns(RuntimeWarning, match="1 of 3 worlds failed"):
        step = env.step(home)
    np.testing.assert_array_equal(step.info["fault"], [False, True, False])
    np.testing.assert_array_equal(step.truncated, [False, True, False])
    assert not step.terminated.any()
    assert not step.info["success"].any()
    assert np.isfinite(step.final_obs.proprio).all()
    np.testing.assert_array_equal(step.obs.time_s == 0.0, [False, True, False])
    np.testing.assert_allclose(step.obs.proprio[1], home[1], atol=1e-5)
    again = env.step(home)
    assert not again.info["fault"].any()
    np.testing.assert_array_equal(again.info["episode"], [0, 4, 2])
