"""An exported reward model says what the trained one says, moment by moment, and needs no torch."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from deploy.reward_model.deployed import DeployedRewardModel
from deploy.targets import onnxruntime
from reward_models.core.curves import LEAST_SHARE
from reward_models.models.pairwise import update_memory, update_memory_step
from tests.deploy.conftest import made_reward_model
from tests.fakes import PX, TASKS
from vla.contracts.protocols import RewardModel
from vla.contracts.types import Example, Frames

FIELDS = ("value", "delta", "trend", "done_prob", "match", "confidence")
CLOSE = 4e-5
"""Embeddings of a reward model with random weights range up to 20; FP32 has seven digits."""
FOREIGN = "fly to the moon, twice"


@pytest.fixture
def exported(reward_model_artefact):
    return DeployedRewardModel(
        reward_model_artefact, onnxruntime.Config().open(reward_model_artefact)
    )


def pictures(rng, count):
    """Return images u8 [count, 2, ...] of moments; now and then a camera delivers none."""
    images = rng.integers(0, 256, (count, 2, PX, PX, 3), np.uint8)
    ok = rng.random((count, 2)) > 0.2
    images[~ok] = 0
    return images, ok


def moment(rng, times):
    images, ok = pictures(rng, len(times))
    return Frames(
        images=images, image_ok=ok, time_s=np.array(times), episode_index=np.arange(len(times))
    )


def stream(rng, rows, steps):
    """Yield moments of rows that begin anew at times of their own, and their instructions."""
    times, tasks = np.zeros(rows), [TASKS[i % 2] for i in range(rows)]
    tasks[-1] = FOREIGN
    for step in range(steps):
        if step:
            times = times + rng.uniform(0.05, 0.7, rows)
        for row in range(rows):
            if step and step % (7 + 3 * row) == 0:
                times[row], tasks[row] = 0.0, (*TASKS, FOREIGN)[rng.integers(3)]
        yield moment(rng, times.copy()), tuple(tasks)


def shown(rng, count=4, task=""):
    images, ok = pictures(rng, count)
    frames = Frames(
        images=images,
        image_ok=ok,
        time_s=0.3 * np.arange(count),
        episode_index=np.zeros(count, np.int64),
    )
    return Example(frames=frames, progress=np.linspace(0, 1, count, dtype=np.float32), task=task)


def assert_same(theirs, ours):
    for name in FIELDS:
        # A share of the work divides by as little as 0.05, and rounding with it.
        atol = CLOSE / LEAST_SHARE if name == "delta" else CLOSE
        got, expected = getattr(theirs, name), getattr(ours, name)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=name)


def both(exported, rows, steps, seed=0, example=None, task=""):
    """Let both watch the same streams; return what each said, [steps] each."""
    scorer = made_reward_model()
    states = [side.start(rows, example, task) for side in (scorer, exported)]
    heard = []
    for frames, tasks in stream(np.random.default_rng(seed), rows, steps):
        ours, states[0] = scorer.step(states[0], frames, tasks)
        theirs, states[1] = exported.step(states[1], frames, tasks)
        heard.append((ours, theirs))
    return heard


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_streams_that_begin_anew_lose_cameras_and_change_instructions_are_told_alike(
    exported, rows
):
    heard = both(exported, rows, 40, seed=rows)
    for ours, theirs in heard:
        assert_same(theirs, ours)
    silent = np.isnan([ours.value for ours, _ in heard])
    assert 0 < silent.sum() < silent.size, "the test reward model should abstain now and then"


@pytest.mark.parametrize("task", ["", TASKS[1]])
def test_a_reference_episode_is_told_alike(exported, task):
    example = shown(np.random.default_rng(9), task=task)
    told = both(exported, 3, 12, example=example, task=TASKS[0])
    for ours, theirs in told:
        assert_same(theirs, ours)
    alone = both(exported, 3, 12)
    assert np.abs(told[5][1].match - alone[5][1].match).max() > 1e-4


def test_a_stream_that_is_joined_late_begins_there(exported):
    rng, scorer = np.random.default_rng(3), made_reward_model()
    states = [side.start(2) for side in (scorer, exported)]
    for step in range(6):
        frames = moment(rng, [4.0 + 0.4 * step, 0.4 * step])
        ours, states[0] = scorer.step(states[0], frames, TASKS)
        theirs, states[1] = exported.step(states[1], frames, TASKS)
        assert_same(theirs, ours)


def test_whole_episodes_are_scored_alike(exported):
    rng, lengths = np.random.default_rng(4), (9, 1, 5)
    images, ok = pictures(rng, sum(lengths))
    times = [np.append(0.0, np.cumsum(rng.uniform(0.05, 0.9, n - 1))) for n in lengths]
    frames = Frames(
        images=images, image_ok=ok, time_s=np.concatenate(times),
        episode_index=np.repeat(np.arange(3), lengths),
    )  # fmt: skip
    tasks = (TASKS[1], TASKS[0], FOREIGN)
    assert_same(exported.score(frames, tasks), made_reward_model().score(frames, tasks))
    example = shown(rng)
    assert_same(
        exported.score(frames, tasks, example), made_reward_model().score(frames, tasks, example)
    )
    with pytest.raises(ValueError, match="in order of episode and, within it, of time"):
        exported.score(replace(frames, time_s=frames.time_s[::-1].copy()), tasks)


def test_at_the_beginning_of_an_episode_nothing_has_changed_to_the_bit(exported):
    frames = moment(np.random.default_rng(5), [0.0, 0.0, 0.0])
    said, _ = exported.step(exported.start(3), frames, (*TASKS, FOREIGN))
    assert (np.nan_to_num(said.delta) == 0).all()
    np.testing.assert_array_equal(said.trend[:, 0], said.trend[:, 2])


def test_a_step_leaves_the_state_it_was_given_as_it_was(exported):
    rng = np.random.default_rng(6)
    _, state = exported.step(exported.start(2), moment(rng, [0.0, 0.0]), TASKS)
    frames = moment(rng, [0.5, 0.4])
    first, _ = exported.step(state, frames, TASKS)
    exported.step(state, moment(rng, [0.9, 0.0]), TASKS)
    again, _ = exported.step(state, frames, TASKS)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_no_more_is_kept_than_will_be_looked_back_on(exported):
    rng, state = np.random.default_rng(7), exported.start(1)
    for step in range(30):
        _, state = exported.step(state, moment(rng, [0.2 * step]), TASKS[:1])
    assert state.embeddings.shape[1] == state.past.time_s.shape[1] <= 10  # 1.7 s, 0.2 s apart


def test_what_was_kept_is_forgotten_where_an_episode_begins_even_if_it_is_not_a_number(exported):
    rng = np.random.default_rng(8)
    _, state = exported.step(exported.start(2), moment(rng, [0.0, 0.0]), TASKS)
    stale = replace(state, memory=state.memory + np.nan, first=state.first + np.nan)
    frames = moment(rng, [0.0, 0.0])
    fresh, _ = exported.step(state, frames, TASKS)
    again, _ = exported.step(stale, frames, TASKS)
    np.testing.assert_array_equal(fresh.confidence, again.confidence)
    assert np.isfinite(again.confidence).all()


def test_memory_of_one_frame_each_is_that_of_many():
    rng = np.random.default_rng(10)
    memory, row = made_reward_model().reward_model.initial_memory(3)[:, :8], torch.arange(3)
    memory[0] = torch.from_numpy(rng.standard_normal(8, np.float32))
    for fresh in ([False, False, False], [True, False, True]):
        kept = torch.from_numpy(rng.standard_normal((3, 4), np.float32))
        expected = update_memory(kept, row, memory, torch.tensor(fresh))
        found = update_memory_step(kept, memory, torch.tensor(fresh))
        assert all(map(torch.equal, found, expected))


def test_it_is_a_reward_model_that_knows_its_cameras(exported):
    assert isinstance(exported, RewardModel)
    assert (exported.cameras, exported.image_hw) == (("front", "wrist"), (PX, PX))


def test_what_does_not_fit_is_refused_by_name(exported):
    rng = np.random.default_rng(11)
    good = moment(rng, [0.0, 0.0])
    _, state = exported.step(exported.start(2), moment(rng, [1.0, 2.0]), TASKS)
    wrong = {
        r"images: got uint8 \(2, 2, 16, .*expected uint8 \('f', 2, 32, 32, 3\): cameras front, wri":
            (replace(good, images=good.images[:, :, ::2]), TASKS),
        r"rows \[1, 0\] and 2 instructions for 2 streams": (
            replace(good, episode_index=np.array([1, 0])), TASKS
        ),
        r"rows \[0\] and 1 instructions for 2 streams": (moment(rng, [0.0]), TASKS[:1]),
        "stream 1 is at 1.5 s after 2.0 s": (moment(rng, [1.0, 1.5]), TASKS),
        "stream 0 is at nan s after 1.0 s": (moment(rng, [np.nan, 3.0]), TASKS),
        "stream 0 is at inf s": (moment(rng, [np.inf, 3.0]), TASKS),
    }  # fmt: skip
    for said, given in wrong.items():
        with pytest.raises(ValueError, match=said):
            exported.step(state, *given)
    example = shown(rng)
    two = replace(example.frames, episode_index=np.array([0, 0, 0, 1]))
    with pytest.raises(ValueError, match=r"example: got 4 frames of rows \[0, 1\]"):
        exported.start(1, replace(example, frames=two))


def test_it_runs_without_torch(reward_model_folders):
    code = f"""
import sys
from pathlib import Path
import numpy as np
from deploy import loader
from vla.contracts.types import Frames
reward_model = loader.open_reward_model(Path({str(reward_model_folders[1])!r}))
state = reward_model.start(1)
for step in range(3):
    frames = Frames(
        images=np.full((1, 2, *reward_model.image_hw, 3), 40 * step, np.uint8),
        image_ok=np.ones((1, 2), bool), time_s=np.array([0.2 * step]),
        episode_index=np.zeros(1, np.int64),
    )
    said, state = reward_model.step(state, frames, ("press the red button",))
assert np.isfinite(said.confidence).all()
heavy = {{"torch", "lerobot", "transformers", "mujoco", "reward_models.core.scorer"}}
heavy &= set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
