"""What every registered backend that can be had here must satisfy; a new one is tested by its name.

All tasks on MuJoCo itself, one on the others; the rest of them are slow (`-m slow`).
"""

import functools
from typing import Any

import numpy as np
import pytest

from sim import vec_env
from sim.core.privileged_state import PrivilegedState
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.tasks import count, day_log, wait_then_press
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.protocols import VecEnv
from vla.contracts.types import Array, EnvStep, Observation

pytestmark = pytest.mark.timeout(600)  # whoever comes first compiles

ENVS = 4
LONGEST = 256
SHORT = {
    "count": count.Config(choices=1, delay_steps=(16, 32)),
    "day_log": day_log.Config(events=(3, 4), delay_steps=(16, 32)),
    "wait_then_press": wait_then_press.Config(interval_decisions=(2, 4), delay_steps=(16, 32)),
}
"""Of tasks whose episodes may be longer than that."""
REFERENCE = "mujoco_cpu"
QUICK = "pick_place"
ELSEWHERE = {
    "newton": pytest.mark.slow, "isaac_lab": pytest.mark.isaac, "isaac_gym": pytest.mark.isaac
}  # fmt: skip
"""Backends that need an environment or a package of their own."""


def _plays_many(backend: str) -> bool:
    """Return whether a backend plays our tasks, and in more than one world."""
    config = registry.load("sim.backends", backend).Config
    return backend != vec_env.SUITE_BACKEND and not config.is_realtime


def _marks(backend: str, task: str) -> list[pytest.MarkDecorator]:
    if backend in ELSEWHERE:
        return [ELSEWHERE[backend]]
    return [] if backend == REFERENCE or task == QUICK else [pytest.mark.slow]


CASES = [
    pytest.param((backend, task), id=f"{backend}-{task}", marks=_marks(backend, task))
    for backend in registry.names("sim.backends")
    for task in registry.names("sim.tasks")
    if _plays_many(backend)
]


@functools.cache
def _made(backend: str, task: str) -> Any:
    try:
        return vec_env.make(task, ENVS, backend=backend, task_config=SHORT.get(task))
    except ValueError as error:
        return str(error)


def _environment(case: tuple[str, str]) -> Any:
    """Return an environment; skip the test if its simulator is not installed."""
    made = _made(*case)
    if isinstance(made, str):
        assert case[0] in ELSEWHERE, made
        pytest.skip(made)
    return made


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def env(case: tuple[str, str]) -> Any:
    return _environment(case)


def _numpy(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def _home(env: Any, length: int = 1) -> np.ndarray:
    return np.tile(np.array(env.spec.robot.home, np.float32), (ENVS, length, 1))


def _swing(env: Any, length: int = 2) -> np.ndarray:
    """Return actions that move every joint but stay near home."""
    swing = 0.1 * np.sin(np.arange(ENVS))[:, None, None]
    low, high = (np.array(x, np.float32) for x in (env.spec.robot.low, env.spec.robot.high))
    return np.clip(_home(env, length) + swing.astype(np.float32), low, high)


def _assert_sound(env: Any, obs: Observation) -> None:
    robot = env.spec.robot
    camera = robot.cameras[0]
    shape = (ENVS, len(robot.cameras), camera.height_px, camera.width_px, 3)
    images = _numpy(obs.images)
    assert images.shape == shape
    assert images.dtype == np.uint8
    assert images.reshape(ENVS, -1).std(axis=1).min() > 5  # something is to be seen
    assert obs.proprio.shape == (ENVS, len(robot.channels))
    assert np.isfinite(obs.proprio).all()
    assert set(obs.task) <= set(env.spec.instructions)
    assert obs.image_ok.all()


def _assert_privileged(env: Any, seed: int, episodes: range) -> None:
    """Check that the privileged state is that of the beginning of some episodes."""
    task = vec_env.load_task(env.spec.task, SHORT.get(env.spec.task))
    scene = compile_scene(task, env.spec.robot)
    world, reader = MujocoWorld(scene), PrivilegedState(scene)
    expected = []
    for episode in episodes:
        world.reset(seed, episode)
        expected.append(reader.read(world.as_batch)[0])
    state = env.privileged_state()
    assert env.privileged_state_names == reader.names
    assert state.dtype == np.float32
    assert state.shape == (ENVS, len(reader.names))
    assert np.isfinite(state).all()
    np.testing.assert_allclose(state, expected, atol=1e-4)


def _play(env: Any, seed: int) -> list[Observation]:
    return [env.reset(seed), *(env.step_chunk(_swing(env)).obs for _ in range(3))]


def test_its_configuration_survives_a_round_trip(case: tuple[str, str]) -> None:
    config = registry.load("sim.backends", case[0]).Config()
    there = configs.to_json(config)
    assert configs.from_json(configs.PluginConfig, there, package="sim.backends") == config


def test_it_is_a_vec_env_whose_observations_are_those_of_its_spec(
    env: Any, case: tuple[str, str]
) -> None:
    assert isinstance(env, VecEnv)
    assert (env.num_envs, env.spec.task) == (ENVS, case[1])
    obs = env.reset(0)
    _assert_sound(env, obs)
    np.testing.assert_array_equal(obs.time_s, np.zeros(ENVS))
    step = env.step(_swing(env)[:, 0])
    _assert_sound(env, step.obs)
    assert isinstance(step, EnvStep)
    np.testing.assert_allclose(step.obs.time_s, np.full(ENVS, 1 / env.spec.robot.control_hz))
    assert not (step.terminated & step.truncated).any()


def test_its_episodes_begin_as_those_of_mujoco_begin(env: Any, case: tuple[str, str]) -> None:
    ours, theirs = env.reset(3), _made(REFERENCE, case[1]).reset(3)
    assert ours.task == theirs.task
    np.testing.assert_allclose(ours.proprio, theirs.proprio, atol=1e-6)


def test_its_privileged_state_begins_as_that_of_mujocos_worlds(env: Any) -> None:
    names = vec_env.with_privileged_state(env).privileged_state_names
    assert len(set(names)) == len(names)
    env.reset(3)
    _assert_privileged(env, 3, range(ENVS))


def test_the_same_seed_is_the_same_episode_and_another_seed_is_not(env: Any) -> None:
    once, again, other = _play(env, 5), _play(env, 5), _play(env, 6)
    for first, second in zip(once, again, strict=True):
        np.testing.assert_allclose(first.proprio, second.proprio, atol=1e-4)
        difference = _numpy(first.images).astype(int) - _numpy(second.images)
        assert np.abs(difference).mean() < 0.1
        assert first.task == second.task
    assert np.abs(_numpy(once[0].images).astype(int) - _numpy(other[0].images)).mean() > 1


def test_rows_that_idle_stand_still_and_the_others_go_on(env: Any) -> None:
    before = env.reset(1)
    frozen = np.array([False, True, False, True])
    after = env.step_chunk(_swing(env, 3), frozen=frozen)
    np.testing.assert_array_equal(after.obs.proprio[frozen], before.proprio[frozen])
    np.testing.assert_array_equal(_numpy(after.obs.images)[frozen], _numpy(before.images)[frozen])
    np.testing.assert_array_equal(after.info["steps"], np.where(frozen, 0, 3))
    np.testing.assert_allclose(after.obs.time_s, np.where(frozen, 0, 3) / env.spec.robot.control_hz)


def test_rows_that_begin_anew_leave_the_others_where_they_are(env: Any) -> None:
    env.reset(1)
    before = env.step_chunk(_swing(env)).obs
    rows = np.array([2, 0])
    after = env.begin(rows, np.array([9, 9]), np.array([7, 8]))
    others = [1, 3]
    np.testing.assert_array_equal(after.proprio[others], before.proprio[others])
    np.testing.assert_array_equal(_numpy(after.images)[others], _numpy(before.images)[others])
    np.testing.assert_array_equal(after.time_s[rows], [0.0, 0.0])
    np.testing.assert_allclose(after.proprio[rows], _home(env)[rows, 0], atol=1e-4)


def test_experts_succeed_and_final_observations_are_those_before_the_reset(env: Any) -> None:
    env.reset(0)
    step = env.step_chunk(_home(env, LONGEST), use_expert=np.ones(ENVS, np.bool_))
    assert (step.terminated | step.truncated).all()
    assert step.info["success"].sum() >= ENVS - 1
    np.testing.assert_array_equal(step.reward, step.info["success"])
    _assert_sound(env, step.final_obs)
    ended_s = step.info["steps"] / env.spec.robot.control_hz
    np.testing.assert_allclose(step.final_obs.time_s, ended_s)
    np.testing.assert_array_equal(step.obs.time_s, np.zeros(ENVS))
    np.testing.assert_allclose(step.obs.proprio, _home(env)[:, 0], atol=1e-4)
    _assert_privileged(env, 0, range(ENVS, 2 * ENVS))
    moved = np.abs(step.final_obs.proprio - step.obs.proprio).max(axis=1)
    assert moved.min() > 0.02
    first, last = (_numpy(x.images).astype(int) for x in (step.obs, step.final_obs))
    assert np.abs(first - last).reshape(ENVS, -1).mean(axis=1).min() > 0.5
    assert not step.info.get("fault", np.zeros(ENVS, np.bool_)).any()
    # The next episode of row i is i + E.
    np.testing.assert_array_equal(step.info["episode"], np.arange(ENVS))
    again = env.step_chunk(_swing(env, 1))
    np.testing.assert_array_equal(again.info["episode"], np.arange(ENVS) + ENVS)


def test_what_it_cannot_do_is_refused_with_what_was_got_and_expected(env: Any) -> None:
    env.reset(0)
    with pytest.raises(ValueError, match="actions: got shape"):
        env.step_chunk(_home(env)[:2])
    with pytest.raises(ValueError, match="actions: got NaN or infinity"):
        env.step(np.full_like(_home(env)[:, 0], np.nan))
    with pytest.raises(ValueError, match="seed: got -1"):
        env.reset(-1)


def test_no_environment_and_no_worker_are_refused(case: tuple[str, str]) -> None:
    _environment(case)
    with pytest.raises(ValueError, match="num_envs: got 0"):
        vec_env.make(case[1], 0, backend=case[0])
    with pytest.raises(ValueError, match="workers: got 0"):
        vec_env.make(case[1], 2, workers=0, backend=case[0])
