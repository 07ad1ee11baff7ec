"""Suites that are installed here behave as a `VecEnv` does; `vla env add` installs them."""

import contextlib
import dataclasses

import numpy as np
import pytest

from sim import vec_env
from sim.env_server import env_command, suite_installs
from sim.experts import suite_episode

# Making them takes minutes and gigabytes: `vla env add`, then `-m slow`.
pytestmark = pytest.mark.slow

SUITES = sorted(s for s in suite_installs.suites() if not suite_installs.is_backend(s))
NEEDS_SCENES = {"libero"}


def ready(suite):
    """Skip unless a suite is installed, and has what is no part of its package."""
    if suite_installs.state(suite) != "installed":
        pytest.skip(f"not installed: vla env add {suite}")
    note = suite_installs.note(suite)
    if suite in NEEDS_SCENES and not (note.health and note.health.works):
        pytest.skip(f"does not work here: vla env list --check says why ({suite})")


@contextlib.contextmanager
def opened(suite, num_envs=2):
    name = f"{suite}/{suite_installs.described(suite).sample}"
    with contextlib.closing(vec_env.make(name, num_envs)) as env:
        yield env


def same(a, b):
    return np.array_equal(a.images, b.images) and np.array_equal(a.proprio, b.proprio)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SUITES)
def test_an_episode_follows_from_its_seed_and_number_whatever_was_before(suite):
    ready(suite)
    with opened(suite) as env:
        arm, rng = env.spec.robot, np.random.default_rng(0)
        low, high = np.array(arm.low), np.array(arm.high)
        actions = (low + (high - low) * rng.uniform(0.3, 0.7, (4, len(low)))).astype(np.float32)
        chunk = np.repeat(actions[None], 2, 0)
        first = env.reset(7)
        assert first.images.shape == (2, 2, 96, 96, 3)
        assert all(np.ptp(view) > 30 for row in first.images for view in row)
        assert set(first.task) <= set(env.spec.instructions)
        assert not np.array_equal(first.images[0], first.images[1])
        step = env.step_chunk(chunk)
        assert np.isfinite(step.obs.proprio).all()
        assert step.obs.time_s == pytest.approx(4 / arm.control_hz)
        again = env.reset(7)
        assert same(first, again)
        assert same(step.obs, env.step_chunk(chunk).obs)
        # Rows do not matter: row 1 plays what row 0 has played.
        moved = env.begin(np.array([1]), np.array([7]), np.array([0]))
        assert np.array_equal(moved.images[1], first.images[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SUITES)
def test_the_arm_follows_its_channels(suite):
    """The hand goes the way of the first three channels, or joints go where they are told."""
    ready(suite)
    with opened(suite, 1) as env:
        arm = env.spec.robot
        if arm.channels[0].unit == "1":
            begin = env.reset(0).proprio[0, :3]
            up = np.zeros((1, 8, len(arm.channels)), np.float32)
            up[:, :, 2] = 1.0
            moved = env.step_chunk(up).obs.proprio[0, :3] - begin
            assert moved[2] > 0.01
            assert np.abs(moved[:2]).max() < moved[2]
        else:
            begin = env.reset(0).proprio[0]
            told = begin.copy()
            told[0] += 0.3
            reached = env.step_chunk(np.repeat(told[None, None], 40, 1)).obs.proprio[0]
            assert reached[0] == pytest.approx(told[0], abs=0.05)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SUITES)
def test_privileged_state_follows_the_episode_or_is_refused(suite):
    ready(suite)
    with opened(suite) as env:
        if not env.privileged_state_names:
            with pytest.raises(ValueError, match=f"the task {suite}.* has no privileged state"):
                vec_env.with_privileged_state(env)
            return
        shape = (2, len(env.privileged_state_names))
        env.reset(7)
        first = vec_env.with_privileged_state(env).privileged_state()
        assert first.shape == shape
        assert first.dtype == np.float32
        assert np.isfinite(first).all()
        env.step_chunk(np.full((2, 4, len(env.spec.robot.channels)), 0.3, np.float32))
        assert not np.array_equal(env.privileged_state(), first)
        env.begin(np.array([1]), np.array([7]), np.array([0]))
        np.testing.assert_allclose(env.privileged_state()[1], first[0], atol=1e-6)


@pytest.mark.timeout(600)
def test_metaworlds_expert_pushes_the_puck_and_progress_says_so():
    ready("metaworld")
    with opened("metaworld", 1) as env:
        env.reset(0)
        seen, over = [], False
        while not over:
            step = env.step_chunk(np.zeros((1, 5, 4), np.float32), np.ones(1, np.bool_))
            seen.append(float(step.info["progress"][0]))
            over = bool(step.terminated[0] | step.truncated[0])
        assert bool(step.info["success"][0])
        assert seen[0] < 0.2
        assert seen[-1] == 1.0
        assert np.abs(step.info["actions"]).max() <= 1.0


@pytest.mark.timeout(600)
def test_mikasa_draws_at_decisions_and_labels_what_has_to_be_touched():
    ready("mikasa")
    task = vec_env.load_task("mikasa/RememberColor3-VLA-v0")
    task = dataclasses.replace(task, image_steps=4)
    record = suite_episode.record_episode("", 5, 0, "expert", task.arm(), task)
    assert record.success[-1]
    moved = np.diff(record.images.astype(int), axis=0).any((1, 2, 3, 4))
    changes = 1 + np.flatnonzero(moved)
    assert len(changes)
    assert np.all(changes % 4 == 0)
    xy = np.stack([record.labels[f"referent.object.base.{axis}"] for axis in "xy"], 1)
    known = np.isfinite(xy[:, 0])
    go = int(np.argmax(known))
    assert 2 <= go <= 10
    assert known[go:].all()
    # The cue is seen at first in the middle: what is labelled later has its colour.
    shown = record.images[-(-go // 4) * 4, 0]
    column, row = ((xy[go] + 1.0) / 2.0 * shown.shape[1]).astype(int)
    cue = purest(record.images[0, 0, 50:66, 40:56])
    assert purest(shown[row - 2 : row + 3, column - 2 : column + 3]) == cue


def purest(patch):
    """Return the channel of the pixel that has least of the others: cubes have one, wood all."""
    pixels = np.sort(patch.reshape(-1, 3), 1)
    assert pixels[:, 1].min() < 40
    return int(patch.reshape(-1, 3)[pixels[:, 1].argmin()].argmax())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_metaworld_installs_from_nothing_and_works(tmp_path, monkeypatch, capsys):
    if suite_installs.state("metaworld") == "installed":
        pytest.skip("is installed already; the other tests try it")
    monkeypatch.setenv("MNEME_ENVS", str(tmp_path))
    assert env_command.add(["metaworld"]) == 0
    assert "metaworld: 50 tasks" in capsys.readouterr().out
