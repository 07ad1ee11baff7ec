"""Tasks on Isaac Gym and Isaac Lab, over the env server with stand-ins of NVIDIA's packages."""

import contextlib
import os
from pathlib import Path

import mujoco
import numpy as np
import pytest

from sim import vec_env
from sim.backends import isaac_gym, isaac_lab
from sim.core.scene import compile_scene
from sim.engines import hosted
from sim.engines.engine import Engine, State
from sim.vec_env import load_robot, load_task
from tests.sim.isaac import stand

CASES = {
    "gym": ("isaac_gym", isaac_gym, 2, "cuda:0"),
    "gym on the processor": ("isaac_gym", isaac_gym, 2, "cpu"),
    "lab 2.3": ("isaac_lab", isaac_lab, 2, "cpu"),
    "lab 3": ("isaac_lab", isaac_lab, 3, "cpu"),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def config(case, folder, **changes):
    _, module, lab, device = case
    return module.Config(python=stand.interpreter(folder, lab), device=device, **changes)


@contextlib.contextmanager
def engine(case, folder, task="pick_place", worlds=3):
    scene = compile_scene(load_task(task), load_robot(None))
    adapter, _, lab, device = case
    started = hosted.start(
        scene, worlds, adapter, Path(stand.interpreter(folder, lab)),
        {"device": device, "draws": True}, startup_timeout_s=100.0, step_timeout_s=100.0,
    )  # fmt: skip
    with contextlib.closing(started):
        yield scene, started


def tilted(scene, worlds):
    """Return worlds in which the cube hangs tilted and spins, none like another."""
    rng = np.random.default_rng(0)
    qpos = np.repeat(scene.model.qpos0[None], worlds, axis=0)
    qvel = np.zeros((worlds, scene.model.nv))
    at, dof = scene.model.joint("cube").qposadr[0], scene.model.joint("cube").dofadr[0]
    qpos[:, :7] = (0.0, -1.2, 0.5, 1.6, 0.0, 0.4, 0.4)
    qpos[:, at : at + 3] = rng.uniform((0.15, -0.1, 0.3), (0.25, 0.1, 0.4), (worlds, 3))
    quat = rng.standard_normal((worlds, 4))
    qpos[:, at + 3 : at + 7] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    qvel[:, dof : dof + 6] = rng.standard_normal((worlds, 6))
    return State(
        qpos=qpos, qvel=qvel, ctrl=qpos[:, :6].copy(),
        mocap_pos=rng.uniform(0.1, 0.3, (worlds, scene.model.nmocap, 3)),
        mocap_quat=np.tile([1.0, 0.0, 0.0, 0.0], (worlds, scene.model.nmocap, 1)),
    )  # fmt: skip


def test_the_expert_succeeds_and_sees_what_mujoco_shows(case, tmp_path):
    # What differs between episodes is not the same everywhere: no cameras move in Isaac Gym.
    reference = vec_env.make("pick_place", 2, randomize=False)
    env = vec_env.make("pick_place", 2, backend=config(case, tmp_path, randomize=False))
    with contextlib.closing(env), contextlib.closing(reference):
        seen, ours = env.reset(3), reference.reset(3)
        assert seen.task == ours.task
        np.testing.assert_allclose(seen.proprio, ours.proprio, atol=1e-5)
        # A camera that is turned the wrong way shows something else altogether.
        assert stand.alike(seen.images, ours.images).min() > 0.8
        assert all(stand.play(env, 2).values())


@pytest.mark.parametrize("case", ["gym", "lab 2.3", "lab 3"], indirect=True)
def test_worlds_go_on_as_mujoco_goes_on_from_the_same_state(case, tmp_path):
    with engine(case, tmp_path) as (scene, worlds):
        assert isinstance(worlds, Engine)
        state = tilted(scene, 3)
        worlds.write(np.arange(3), state, {})
        np.testing.assert_allclose(worlds.read().qpos, state.qpos, atol=1e-6)
        np.testing.assert_allclose(worlds.read().qvel, state.qvel, atol=1e-5)
        worlds.step(state.ctrl, 10, np.array([True, False, True]))
        reading = worlds.read()
        np.testing.assert_allclose(reading.qpos[1], state.qpos[1], atol=1e-6)
        data = mujoco.MjData(scene.model)
        data.qpos[:], data.qvel[:], data.ctrl[:] = (
            state.qpos[2], state.qvel[2], state.ctrl[2]
        )  # fmt: skip
        mujoco.mj_step(scene.model, data, nstep=10)
        np.testing.assert_allclose(reading.qpos[2], data.qpos, atol=2e-3)
        np.testing.assert_allclose(reading.qvel[2], data.qvel, atol=2e-2)
        # The world that stood still goes on from where it stood, and nothing went wrong.
        worlds.step(state.ctrl, 10, np.ones(3, np.bool_))
        np.testing.assert_allclose(worlds.read().qpos[1, 9], state.qpos[1, 9], atol=0.1)
        assert worlds.read().qpos[1, 9] != state.qpos[1, 9]
        assert not worlds.faults().any()


def test_images_can_be_ours(tmp_path):
    case = CASES["lab 3"]
    with (
        contextlib.closing(vec_env.make("reach", 1)) as reference,
        contextlib.closing(
            vec_env.make("reach", 1, backend=config(case, tmp_path, renderer="mujoco"))
        ) as env,
    ):
        np.testing.assert_array_equal(env.reset(0).images, reference.reset(0).images)


def test_what_a_simulator_cannot_hold_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="isaac_lab: scene: got joints in base and cabinet"):
        vec_env.make("drawer", 1, backend=config(CASES["lab 3"], tmp_path))
    with pytest.raises(ValueError, match="isaac_gym: geom of .* got a cylinder with contacts"):
        vec_env.make("cue_colour", 1, backend=config(CASES["gym"], tmp_path))


@pytest.mark.parametrize("module", [isaac_gym, isaac_lab])
def test_a_missing_interpreter_is_one_sentence(module):
    name = module.__name__.rsplit(".", 1)[-1]
    with pytest.raises(ValueError, match=f"expected the interpreter in which {name} is installed"):
        vec_env.make("reach", 1, backend=name)
    with pytest.raises(ValueError, match="num_envs: got 0"):
        vec_env.make("reach", 0, backend=module.Config(python="x"))
    with pytest.raises(ValueError, match="workers: got 2, expected 1: one process"):
        vec_env.make("reach", 2, backend=module.Config(python="x", workers=2))
    with pytest.raises(ValueError, match=r"backend\.startup_timeout_s: got nan"):
        vec_env.make("reach", 1, backend=module.Config(python="x", startup_timeout_s=float("nan")))


@pytest.mark.isaac
@pytest.mark.parametrize("name", ["isaac_gym", "isaac_lab"])
def test_the_expert_succeeds_on_the_real_one(name):
    python = os.environ.get(f"MNEME_{name.upper()}_PYTHON", "")
    if not python:
        pytest.skip(f"MNEME_{name.upper()}_PYTHON names no interpreter with the real {name}")
    module = {"isaac_gym": isaac_gym, "isaac_lab": isaac_lab}[name]
    with contextlib.closing(
        vec_env.make("pick_place", 8, backend=module.Config(python=python))
    ) as env:
        env.reset(0)
        assert np.mean(list(stand.play(env, 16).values())) > 0.9
