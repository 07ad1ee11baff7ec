"""Batched environments: episodes follow from seed and index, whoever runs them."""

import numpy as np
import pytest

from sim import vec_env
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import cue_colour
from vla.contracts.protocols import VecEnv

SHORT = cue_colour.Config(delay_steps=(16, 16), act_steps=8)


def make(num_envs, workers=1):
    return vec_env.make("cue_colour", num_envs, workers=workers, task_config=SHORT)


def play(num_envs, workers=1, chunks=10):
    """Return everything seen, by episode index, in episodes that only move the pan joint."""
    env = make(num_envs, workers)
    home = np.array(env.spec.robot.home, np.float32)
    action = np.tile(home, (num_envs, 8, 1))
    action[:, :, 0] = 0.5
    obs = env.reset(5)
    index = np.arange(num_envs)
    seen = {int(i): [] for i in index}
    for _ in range(chunks):
        for row in range(num_envs):
            seen[int(index[row])].append((obs.images[row], obs.proprio[row], obs.task[row]))
        step = env.step_chunk(action)
        np.testing.assert_array_equal(step.info["episode"], index)
        ended = step.terminated | step.truncated
        for row in np.flatnonzero(ended):
            final = step.final_obs
            seen[int(index[row])].append(
                (final.images[row], final.proprio[row], final.task[row], bool(step.reward[row]))
            )
        index = index + ended * num_envs
        for i in index:
            seen.setdefault(int(i), [])
        obs = step.obs
    env.close()
    return seen


def assert_same(a, b, shortest):
    compared = 0
    for index in set(a) & set(b):
        for x, y in zip(a[index], b[index], strict=False):
            for left, right in zip(x, y, strict=True):
                np.testing.assert_array_equal(left, right)
            compared += 1
    assert compared >= shortest


def test_workers_change_nothing_to_the_bit():
    assert_same(play(3, workers=1), play(3, workers=2), shortest=30)


def test_the_number_of_environments_changes_nothing_to_the_bit():
    assert_same(play(2, chunks=20), play(3, chunks=10), shortest=20)


@pytest.mark.parametrize("task", ["reach", "pick_place"])
def test_a_recorded_episode_is_the_one_of_the_same_seed_and_index(task):
    env = vec_env.make(task, 2)
    obs = env.reset(5)
    records = [record_episode(task, 5, index) for index in range(2)]
    for t in range(min(len(r.action) for r in records)):
        for row, record in enumerate(records):
            np.testing.assert_array_equal(obs.images[row], record.images[t])
            np.testing.assert_array_equal(obs.proprio[row], record.proprio[t])
            assert obs.task[row] == record.instruction
        step = env.step(np.stack([r.action[t] for r in records]))
        obs = step.obs
        for row, record in enumerate(records):
            # The last row of a record is the end of the episode.
            if t == len(record.action) - 2:
                assert step.terminated[row]
                assert step.reward[row] == 1.0
                np.testing.assert_array_equal(step.final_obs.images[row], record.images[-1])
        if step.terminated.any():
            break
    assert step.terminated.any()


def test_it_satisfies_the_protocol():
    env = make(1)
    assert isinstance(env, VecEnv)
    assert env.spec.task == "cue_colour"
    assert env.spec.max_episode_steps == 56  # 16 + 16 + 16 = 48 until go at the latest, and 8


def test_shapes_types_and_the_first_observation():
    env = make(3)
    obs = env.reset(0)
    assert obs.images.shape == (3, 2, 96, 96, 3)
    assert obs.images.dtype == np.uint8
    assert obs.image_ok.all()
    np.testing.assert_allclose(obs.proprio, np.tile(env.spec.robot.home, (3, 1)), atol=1e-6)
    np.testing.assert_array_equal(obs.time_s, 0.0)
    assert set(obs.task) <= set(env.spec.instructions)


def test_an_ended_environment_idles_and_returns_both_observations():
    env = make(2)
    env.reset(0)
    home = np.tile(np.array(env.spec.robot.home, np.float32), (2, 100, 1))
    step = env.step_chunk(home)
    limits = []
    for index in range(2):
        world = MujocoWorld(env._envs._worlds[0].scene)
        world.reset(0, index)
        limits.append(world.time_limit)
    np.testing.assert_array_equal(step.info["steps"], limits)
    assert step.truncated.all()
    assert not step.terminated.any()
    np.testing.assert_allclose(step.final_obs.time_s, np.array(limits) / 10.0)
    np.testing.assert_array_equal(step.obs.time_s, 0.0)
    assert (step.final_obs.images != step.obs.images).any(axis=(1, 2, 3, 4)).all()


def test_rows_that_go_on_have_the_same_observation_twice():
    env = make(2)
    env.reset(0)
    step = env.step(np.tile(np.array(env.spec.robot.home, np.float32), (2, 1)))
    np.testing.assert_array_equal(step.obs.images, step.final_obs.images)
    np.testing.assert_array_equal(step.info["steps"], 1)
    np.testing.assert_allclose(step.obs.time_s, 0.1)


def test_a_chunk_equals_its_steps():
    single, chunked = make(1), make(1)
    single.reset(3)
    chunked.reset(3)
    rng = np.random.default_rng(0)
    robot = single.spec.robot
    actions = rng.uniform(robot.low, robot.high, (1, 44, 6)).astype(np.float32)
    for k in range(44):
        last = single.step(actions[:, k])
        if last.terminated[0] or last.truncated[0]:
            break
    step = chunked.step_chunk(actions[:, : k + 1])
    np.testing.assert_array_equal(step.obs.images, last.obs.images)
    np.testing.assert_array_equal(step.obs.proprio, last.obs.proprio)


def assisted(workers=1):
    """Return the success of three episodes of push and the first actions; row 1 is the expert's.

    The expert takes over late: the arm has been moved elsewhere before.
    """
    env = vec_env.make("push", 3, workers=workers)
    env.reset(5)
    away = np.tile(np.array(env.spec.robot.home, np.float32), (3, 4, 1))
    away[:, :, 0] = 0.4
    use_expert, succeeded = np.array([False, True, False]), np.zeros(3, np.bool_)
    steps = [env.step_chunk(away)]
    for _ in range(18):
        steps.append(env.step_chunk(away, use_expert))
        succeeded |= steps[-1].info["success"]
    env.close()
    return succeeded, [step.info["actions"] for step in steps], away


def test_the_expert_acts_in_its_rows_from_wherever_the_arm_is():
    succeeded, actions, away = assisted()
    assert succeeded.tolist() == [False, True, False]
    np.testing.assert_array_equal(actions[0], away)
    np.testing.assert_array_equal(actions[1][[0, 2]], away[[0, 2]])
    assert np.abs(actions[1][1] - away[1]).max() > 0.05


def test_the_expert_acts_alike_in_worker_processes():
    for a, b in zip(assisted()[1], assisted(workers=2)[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_begins_any_episode_and_idle_rows_stand_still(workers):
    env, plain = make(2, workers), make(3)
    still = np.tile(np.array(env.spec.robot.home, np.float32), (2, 8, 1))
    env.reset(7)
    env.step_chunk(still)
    obs = env.begin(np.array([1]), np.array([5]), np.array([2]))
    expected = plain.reset(5)
    np.testing.assert_array_equal(obs.images[1], expected.images[2])
    assert obs.time_s.tolist() == [0.8, 0.0]
    frozen = np.array([True, False])
    step = env.step_chunk(still, frozen=frozen)
    expected = plain.step_chunk(np.concatenate([still, still[:1]]))
    np.testing.assert_array_equal(step.obs.images[1], expected.obs.images[2])
    np.testing.assert_array_equal(step.obs.images[0], obs.images[0])
    assert step.obs.time_s.tolist() == [0.8, 0.8]
    assert step.info["steps"].tolist() == [0, 8]
    while not (step.terminated | step.truncated).any():
        step = env.step_chunk(still, frozen=frozen)
    assert step.truncated.tolist() == [False, True]
    assert env.step_chunk(still, frozen=frozen).info["episode"][1] == 4  # the next of its seed
    env.close()


def test_rows_that_nobody_began_can_only_be_idle():
    env = make(2)
    still = np.tile(np.array(env.spec.robot.home, np.float32), (2, 8, 1))
    env.begin(np.array([0]), np.array([5]), np.array([0]))
    assert env.step_chunk(still, frozen=np.array([False, True])).info["steps"].tolist() == [8, 0]
    with pytest.raises(ValueError, match="step before reset"):
        env.step_chunk(still)
    with pytest.raises(ValueError, match="expected rows below 2 and nothing below 0"):
        env.begin(np.array([2]), np.array([5]), np.array([0]))


def test_observations_are_not_overwritten_by_later_steps():
    env = make(1)
    obs = env.reset(0)
    kept = obs.images.copy(), obs.proprio.copy()
    action = np.array([[0.9, 0, 0, 0, 0, 0]], np.float32)
    for _ in range(60):
        env.step(action)
    np.testing.assert_array_equal(obs.images, kept[0])
    np.testing.assert_array_equal(obs.proprio, kept[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vec_env.make("cue_color", 1), "did you mean cue_colour"),
        (lambda: vec_env.make("cue_colour", 1, robot="so100"), "did you mean so101"),
        (lambda: vec_env.make("cue_colour", 0), "num_envs: got 0"),
        (lambda: vec_env.make("cue_colour", 2, workers=3), "workers: got 3, expected 1 to 2"),
        (lambda: vec_env.make("reach", 1, task_config=SHORT), "got that of 'cue_colour'"),
        (lambda: make(1).reset(-1), "seed: got -1"),
        (lambda: make(1).step(np.zeros((1, 6), np.float32)), "step before reset"),
    ],
)
def test_mistakes_get_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((1, 1, 5), np.float32), r"got shape \(1, 1, 5\), expected \(1, h, 6\)"),
        (np.zeros((1, 0, 6), np.float32), r"got shape \(1, 0, 6\)"),
        (np.zeros((1, 257, 6), np.float32), "with h from 1 to 256"),
        (np.full((1, 1, 6), np.nan, np.float32), "NaN or infinity"),
    ],
)
def test_bad_actions_get_a_sentence(actions, message):
    env = make(1)
    env.reset(0)
    with pytest.raises(ValueError, match=message):
        env.step_chunk(actions)


def test_what_was_saved_goes_on_as_it_did():
    env = make(3)
    home = np.array(env.spec.robot.home, np.float32)
    actions = np.random.default_rng(0).normal(home, 0.2, (12, 3, 4, len(home))).astype(np.float32)
    env.reset(5)
    for action in actions[:3]:
        env.step_chunk(action)
    saved = env.save()
    first = [env.step_chunk(action) for action in actions[3:]]
    for _ in range(40):  # into other episodes, with other colours, light and friction
        env.step_chunk(actions[0])
    obs = env.restore(saved)
    assert (obs.time_s == 12 / env.spec.robot.control_hz).all()
    for action, wanted in zip(actions[3:], first, strict=True):
        found = env.step_chunk(action)
        assert np.array_equal(found.obs.images, wanted.obs.images)
        assert np.array_equal(found.obs.proprio, wanted.obs.proprio)
        assert np.array_equal(found.info["progress"], wanted.info["progress"])


def test_saving_needs_one_process_in_which_all_rows_have_begun():
    with pytest.raises(ValueError, match="save before reset"):
        make(2).save()
    env = make(2, workers=2)
    env.reset(0)
    with pytest.raises(ValueError, match="save: got environments in several processes"):
        env.save()
    env.close()


def test_a_lock_is_told_until_go():
    env = make(2)
    env.reset(0)
    assert env.is_locked().all()
    for _ in range(100):
        env.step_chunk(np.tile(np.array(env.spec.robot.home, np.float32), (2, 8, 1)))
        if not env.is_locked().any():
            return
    raise AssertionError("the arm never comes free")
