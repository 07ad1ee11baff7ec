"""What `vla bench sim` holds us against does the same work; how fast anybody is, no test says."""

import sys

import mujoco
import numpy as np
import pytest

from benchmarks.sim import throughput, throughput_envpool
from benchmarks.sim.throughput_baselines import OwnRendererEnv, Rollout
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.vec_env import load_robot, load_task, make
from vla import cli


@pytest.fixture
def scene():
    return compile_scene(load_task("reach"), load_robot(None))


def test_mujocos_own_threads_end_where_our_worlds_end(scene):
    worlds = [MujocoWorld(scene) for _ in range(3)]
    for index, world in enumerate(worlds):
        world.reset(0, index)
    swing = throughput._swing(scene, 3, 4)
    rollout = Rollout(scene, 3, threads=2)
    for part in throughput._chunks(swing, 2):
        rollout.play(part)
    for action in swing:
        for world, targets in zip(worlds, action, strict=True):
            world.step(targets)
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    for row, world in enumerate(worlds):
        state = np.empty(mujoco.mj_stateSize(world.model, kind))
        mujoco.mj_getState(world.model, world.data, state, kind)
        np.testing.assert_allclose(rollout._state[row], state, atol=1e-9)
    rollout.close()


def test_gymnasiums_environment_shows_what_ours_shows_or_nothing(scene):
    drawn, blind = OwnRendererEnv(scene), OwnRendererEnv(scene, drawn=False)
    ours = make("reach", 1).reset(0)
    seen, unseen = drawn.reset()[0], blind.reset()[0]
    np.testing.assert_array_equal(seen["agent_pos"], ours.proprio[0])
    np.testing.assert_array_equal(unseen["agent_pos"], ours.proprio[0])
    assert np.abs(seen["pixels"].astype(int) - ours.images[0]).mean() < 1
    assert unseen["pixels"].shape == (0,)
    drawn.close()
    blind.close()


@pytest.mark.parametrize(
    ("python", "reason"),
    [(sys.executable, "No module named 'envpool'"), ("/nowhere/python", "No such file")],
)
def test_an_interpreter_without_envpool_is_named_with_its_reason(python, reason):
    with pytest.raises(ValueError, match=reason):
        throughput_envpool.EnvPool(python, 2, 1)


def test_envpools_child_answers_each_number_of_steps(tmp_path):
    (tmp_path / "envpool.py").write_text(
        "import numpy as np\n"
        "__version__ = '0.0'\n"
        "class Space: shape, dtype = (6,), np.float32\n"
        "class Env:\n"
        "    action_space = Space()\n"
        "    def reset(self): pass\n"
        "    def step(self, actions): assert actions.shape == (2, 6)\n"
        "def make(name, env_type, num_envs, num_threads): return Env()\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pool = throughput_envpool.EnvPool(str(python), 2, 1)
    assert pool.version == "0.0"
    assert pool(3) > 0
    assert pool(4) > 0
    pool.close()


def test_steps_that_are_no_multiple_of_a_chunk_are_refused(capsys):
    assert cli.main(["bench", "sim", "--steps", "7"]) == 1
    assert "steps: got 7, expected a multiple of 8" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_table_is_printed(capsys):
    assert throughput.main(["--envs", "2", "--steps", "8", "--turns", "1"]) == 0
    out = capsys.readouterr().out
    for name in ("bare", "AsyncVectorEnv", "mujoco.rollout", "SyncVectorEnv", "best other"):
        assert name in out
    assert "EnvPool" in out
