"""Rows that adapters play are a `VecEnv` like ours: same episodes however they are shared out."""

import dataclasses
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sim.env_server_study import POINT, point
from sim.backends.process import AdapterVecEnv, Config
from sim.env_server.client import AdapterError, Process, WorkerDied
from sim.env_server.in_process import InProcessAdapter
from sim.suites import gymnasium_env
from sim.suites._suite import Suite, SuiteConfig
from sim.tasks import reach
from sim.vec_env import with_privileged_state
from vla.contracts.protocols import VecEnv


def make(num_envs, workers=0, robot=None, adapter=POINT, **options):
    """Return environments of the point: in this process, or in some workers."""
    shared = {"num_envs": num_envs, "randomize": True, **options}

    def start(rows):
        given = {"rows": [rows.start, rows.stop], **shared}
        return (
            Process(Path(sys.executable), adapter, given)
            if workers
            else InProcessAdapter(adapter, given)
        )

    return AdapterVecEnv("point", robot or point(), num_envs, start, workers or 1)


@pytest.fixture
def env():
    env = make(3)
    yield env
    env.close()


def wander(env, steps=8, seed=3):
    """Return all that is seen in some chunks of random actions, ended by resets."""
    rng, seen = np.random.default_rng(0), [env.reset(seed)]
    for _ in range(steps):
        # Every row gets the same actions, so that only its episode tells rows apart.
        chunk = np.repeat(rng.uniform(-0.4, 0.4, (1, 5, 2)), env.num_envs, 0).astype(np.float32)
        seen.append(env.step_chunk(chunk))
    return seen


def test_it_is_a_vec_env(env):
    assert isinstance(env, VecEnv)
    assert env.spec.max_episode_steps == 20
    assert env.spec.instructions == ("push the point to the left", "push the point to the right")
    assert env.has_expert


def test_rows_are_the_same_here_and_in_any_number_of_workers():
    results = []
    for workers in (0, 1, 2):
        env = make(3, workers)
        results.append(wander(env))
        env.close()
    for other in results[1:]:
        np.testing.assert_array_equal(other[0].images, results[0][0].images)
        for a, b in zip(other[1:], results[0][1:], strict=True):
            assert a.obs.task == b.obs.task
            for x, y in ((a.obs, b.obs), (a.final_obs, b.final_obs)):
                np.testing.assert_array_equal(x.images, y.images)
                np.testing.assert_array_equal(x.proprio, y.proprio)
                np.testing.assert_array_equal(x.time_s, y.time_s)
            for name in ("success", "progress", "steps", "episode", "actions"):
                np.testing.assert_array_equal(a.info[name], b.info[name])
            np.testing.assert_array_equal(a.truncated, b.truncated)


def test_episode_j_of_row_i_is_j_times_e_plus_i(env):
    nothing = np.zeros((3, 20, 2), np.float32)
    env.reset(0)
    first, second = env.step_chunk(nothing), env.step_chunk(nothing)
    assert first.truncated.all()
    assert first.info["episode"].tolist() == [0, 1, 2]
    assert second.info["episode"].tolist() == [3, 4, 5]
    single = make(1)
    obs = single.begin(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([4]))
    np.testing.assert_array_equal(first.obs.proprio[1], obs.proprio[0])


def test_a_time_limit_truncates_and_final_obs_is_what_was_seen_before_the_reset(env):
    obs = env.reset(0)
    step = env.step_chunk(np.zeros((3, 25, 2), np.float32))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.info["steps"].tolist() == [20, 20, 20]
    np.testing.assert_array_equal(step.final_obs.proprio, obs.proprio)
    np.testing.assert_allclose(step.final_obs.time_s, 2.0)  # 20 steps of a tenth
    np.testing.assert_array_equal(step.obs.time_s, 0.0)
    assert not np.array_equal(step.obs.proprio, obs.proprio)


def test_the_expert_solves_its_rows_and_its_actions_are_returned(env):
    obs = env.reset(1)
    use_expert = np.array([True, False, True])
    step = env.step_chunk(np.zeros((3, 20, 2), np.float32), use_expert)
    assert step.info["success"].tolist() == [True, False, True]
    assert step.reward.tolist() == [1.0, 0.0, 1.0]
    assert step.terminated.tolist() == [True, False, True]
    assert step.info["progress"][[0, 2]].tolist() == [1.0, 1.0]
    done = step.info["actions"][0, : step.info["steps"][0]]
    np.testing.assert_allclose(
        step.final_obs.proprio[0], obs.proprio[0] + 0.2 * done.sum(0), atol=1e-5
    )
    assert not step.info["actions"][1].any()


def test_a_mistake_for_good_terminates_without_reward(env):
    env.reset(0)
    step = env.step_chunk(np.full((3, 20, 2), [0.0, 1.0], np.float32))
    assert step.terminated.all()
    assert not step.reward.any()
    assert not step.info["success"].any()


def test_actions_beyond_the_limits_do_what_the_limits_do(env):
    before = env.reset(0).proprio
    step = env.step(np.full((3, 2), 9.0, np.float32))
    inside = ~(step.terminated | step.truncated)
    np.testing.assert_allclose(step.final_obs.proprio[inside], before[inside] + 0.2, atol=1e-6)


def test_idle_rows_stand_still(env):
    before = env.reset(0).proprio
    frozen = np.array([False, True, False])
    step = env.step_chunk(np.full((3, 1, 2), 0.5, np.float32), None, frozen)
    assert step.info["steps"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(step.obs.proprio[1], before[1])
    assert not np.array_equal(step.obs.proprio[0], before[0])


def test_begin_starts_other_episodes_in_some_rows_of_any_worker():
    env = make(3, 2)
    before = env.reset(0)
    rows, seeds, indices = (np.array(v) for v in ([2, 0], [5, 6], [1, 2]))
    after = env.begin(rows, seeds, indices)
    np.testing.assert_array_equal(after.proprio[1], before.proprio[1])
    single = make(1)
    for row, seed, index in zip(rows, seeds, indices, strict=True):
        alone = single.begin(np.zeros(1, np.int64), seed[None], index[None])
        np.testing.assert_array_equal(after.proprio[row], alone.proprio[0])
    env.close()


def test_what_is_returned_does_not_change_with_the_next_step(env):
    first = env.reset(0)
    kept = first.images.copy()
    step = env.step(np.full((3, 2), 1.0, np.float32))
    moved = step.obs.images.copy()
    env.step(np.full((3, 2), -1.0, np.float32))
    np.testing.assert_array_equal(first.images, kept)
    np.testing.assert_array_equal(step.obs.images, moved)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.reset(-1), "seed: got -1, expected 0 or more"),
        (lambda e: e.step(np.zeros((2, 2))), r"actions: got shape \(2, 1, 2\), expected \(3, h, 2"),
        (lambda e: e.step(np.full((3, 2), np.nan)), "actions: got NaN or infinity"),
        (lambda e: e.step_chunk(np.zeros((3, 257, 2))), "with h from 1 to 256"),
        (lambda e: e.step_chunk(np.zeros((3, 1, 2)), np.zeros(2, bool)), "use_expert: got shape"),
        (lambda e: e.step_chunk(np.zeros((3, 1, 2)), None, np.zeros(2, bool)), "frozen: got shape"),
        (lambda e: e.begin(np.array([3]), np.array([0]), np.array([0])), "expected rows below 3"),
    ],
)
def test_arguments_out_of_range_are_refused_in_a_sentence(env, call, words):
    env.reset(0)
    with pytest.raises(ValueError, match=words):
        call(env)


def test_a_step_before_the_first_reset_and_after_close_is_refused(env):
    with pytest.raises(ValueError, match="step before reset"):
        env.step(np.zeros((3, 2)))
    env.reset(0)
    env.close()
    with pytest.raises(ValueError, match="step before reset"):
        env.step(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="reset after close"):
        env.reset(0)
    env.close()


def test_after_a_workers_death_a_step_says_so_and_a_reset_starts_it_anew():
    env = make(2, 2)
    first = env.reset(7)
    pids = [worker.pid for worker in env._workers]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=r"simulator '_fault_env'.*signal 9 \(SIGKILL\).*reset start"
    ):
        env.step(np.zeros((2, 2), np.float32))
    assert not Path(f"/proc/{pids[0]}").exists()
    with pytest.raises(ValueError, match="step before reset"):
        env.step(np.zeros((2, 2), np.float32))
    again = env.reset(7)
    np.testing.assert_array_equal(again.images, first.images)
    env.close()


def test_begin_starts_dead_workers_anew_as_well():
    env = make(1, 1)
    env.reset(7)
    os.kill(env._workers[0].pid, signal.SIGKILL)
    zero = np.zeros(1, np.int64)
    with pytest.raises(WorkerDied):
        env.begin(zero, zero, zero)
    assert env.begin(zero, zero, zero).time_s.tolist() == [0.0]
    env.close()


KNOWING = f"""
import sys

sys.path.append({str(POINT.parent)!r})
from _fault_env import Rows, World as Point

class World(Point):
    privileged_state_names = ("state/x", "state/y", "object/goal/x")

    def privileged_state(self):
        return [*self.position, self.goal[0]]

    def referents(self):
        return [[self.goal, [float("nan")] * 2]] * self.image_shape[0]

def open_adapter(options):
    return Rows(World, options)
"""


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_privileged_state_is_the_adapters_of_the_present_episode(tmp_path, workers):
    file = tmp_path / "knowing.py"
    file.write_text(KNOWING)
    env = make(3, workers, adapter=file)
    assert with_privileged_state(env) is env
    assert env.privileged_state_names == ("state/x", "state/y", "object/goal/x")
    with pytest.raises(ValueError, match="privileged_state before reset"):
        env.privileged_state()
    # Rows that have not begun are left alone.
    env.begin(np.array([1]), np.array([0]), np.array([1]))
    assert env.privileged_state().shape == (3, 3)
    nothing = np.zeros((3, 20, 2), np.float32)
    for look in (lambda: env.reset(0), lambda: env.step_chunk(nothing).obs):
        seen = look()
        state = env.privileged_state()
        assert state.dtype == np.float32
        np.testing.assert_array_equal(state[:, :2], seen.proprio)
        right = np.array([text.endswith("right") for text in seen.task])
        np.testing.assert_allclose(state[:, 2], np.where(right, 0.9, -0.9))
        where = env.referents()
        assert where.shape == (3, seen.images.shape[1], 2, 2)
        np.testing.assert_array_equal(where[:, :, 0, 0], np.repeat(state[:, 2:], where.shape[1], 1))
        assert np.isnan(where[:, :, 1]).all()
    env.close()


def test_a_task_whose_suite_tells_no_more_is_refused_by_its_name(env):
    assert env.privileged_state_names == ()
    with pytest.raises(ValueError, match="the task point has no privileged state: its suite"):
        with_privileged_state(env)
    env.reset(0)
    with pytest.raises(ValueError, match="privileged_state: point has none"):
        env.privileged_state()
    assert not env.has_referents
    with pytest.raises(ValueError, match="referents: point has none"):
        env.referents()


def test_one_worker_that_does_not_open_ends_the_others():
    with pytest.raises(AdapterError, match="did not converge"):
        make(2, 2, fault="raise", at="open")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"control_hz": 20.0}, "got control_hz 20.0, expected 10.0"),
        ({"cameras": ()}, r"got cameras \[\], expected \['front', 'wrist'\]"),
    ],
)
def test_a_robot_that_is_not_the_one_of_the_simulator_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        make(1, robot=dataclasses.replace(point(), **change))


def test_limits_that_are_not_those_of_the_simulator_are_refused():
    channels = tuple(dataclasses.replace(c, low=-0.5) for c in point().channels)
    with pytest.raises(ValueError, match=r"got low \(-0.5, -0.5\), expected \[-1.0, -1.0\]"):
        make(1, robot=dataclasses.replace(point(), channels=channels))


@pytest.mark.parametrize(
    ("config", "num_envs", "words"),
    [
        ({}, 0, "num_envs: got 0, expected at least 1"),
        ({"workers": 3}, 2, "workers: got 3, expected 1 to 2"),
    ],
)
def test_numbers_out_of_range_are_refused(config, num_envs, words):
    with pytest.raises(ValueError, match=words):
        Config(**config).build(gymnasium_env.Config(name="X-v0"), point(), num_envs)


@pytest.mark.parametrize("name", ["startup_timeout_s", "step_timeout_s"])
def test_times_that_are_none_are_refused(name):
    with pytest.raises(ValueError, match=f"backend.{name}: got nan, expected above 0"):
        Config(**{name: float("nan")})


def test_a_task_of_ours_is_not_for_this_backend():
    with pytest.raises(ValueError, match="got the task 'reach', expected one of a suite"):
        Config().build(reach.Config(), point(), 1)


def test_a_refusal_of_the_host_reaches_the_user_as_its_sentence_alone():
    task = gymnasium_env.Config(name="Nope-v0", interpreter=sys.executable)
    with pytest.raises(ValueError, match=r"^Nope-v0: Gymnasium cannot make it") as caught:
        Config().build(task, point(), 1)
    assert "Traceback" not in str(caught.value)


def test_suites_offer_what_the_backend_asks_for():
    assert isinstance(gymnasium_env.Config(name="X-v0"), Suite)
    assert SuiteConfig(name="x").options() == {"task": "x"}
