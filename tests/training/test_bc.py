"""Behaviour cloning: what it reads from a data set, serves to the loop, and learns."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.training.tiny_run import tiny_config
from training.algos import bc
from training.commands import train
from training.core.config import TrainConfig
from training.core.loop import Learner
from training.core.optimizer import Optimizer, OptimizerConfig
from vla.contracts.types import EpisodeBatch
from vla.data.store import concatenate, load_episodes
from vla.memory import none


def start(data: Path, config: TrainConfig | None = None, **algo) -> bc.BehaviorCloning:
    config = config or tiny_config()
    return replace(config.algo, **algo).start(config, data)


def assert_equal_batches(a: EpisodeBatch, b: EpisodeBatch) -> None:
    assert a.task == b.task
    for name in (
        "images",
        "proprio",
        "step_index",
        "episode_index",
        "decision",
        "loss_index",
        "actions",
        "action_is_pad",
    ):
        assert torch.equal(getattr(a, name), getattr(b, name))


def test_it_is_a_learner_with_the_instructions_and_statistics_of_the_data(
    arm_dataset: Path,
) -> None:
    learner = start(arm_dataset)
    assert isinstance(learner, Learner)
    assert learner.instructions == ("press 0", "press 1")
    actions = learner.arms[0].store.actions
    scale = learner.module.statistics
    np.testing.assert_allclose(scale.action_low, actions.min(0))
    np.testing.assert_allclose(scale.action_high, actions.max(0))
    np.testing.assert_allclose(scale.state_mean, learner.arms[0].store.states.mean(0), atol=1e-6)
    normalised = learner.module.normalizer.action(torch.from_numpy(actions))
    assert normalised.abs().max() <= 1 + 1e-5


def test_the_seed_alone_decides_the_weights(arm_dataset: Path) -> None:
    a, b = start(arm_dataset), start(arm_dataset)
    c = start(arm_dataset, tiny_config(seed=1))
    weights = [learner.module.state_dict()["head.denoiser.enter.weight"] for learner in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("unit", ["sequence", "frame"])
def test_pictures_are_shaken_and_nothing_else_is(unit: str, arm_dataset: Path) -> None:
    plain, shaken = (
        start(arm_dataset, sampling=unit),
        start(arm_dataset, sampling=unit, brightness_jitter=0.5),
    )
    (a,), (b,) = plain.collect(), shaken.collect()
    assert not torch.equal(a.images, b.images)
    assert_equal_batches(a, replace(b, images=a.images))


@pytest.mark.parametrize("unit", ["sequence", "frame"])
def test_a_restored_stream_of_data_goes_on_to_the_bit(unit: str, arm_dataset: Path) -> None:
    learner = start(arm_dataset, sampling=unit, random_shift_px=2)
    for _ in range(5):
        learner.collect()
    state = json.loads(json.dumps(learner.state()))
    expected = [learner.collect()[0] for _ in range(8)]
    other = start(arm_dataset, sampling=unit, random_shift_px=2)
    other.restore(state)
    for batch in expected:
        assert_equal_batches(other.collect()[0], batch)


def test_the_curriculum_takes_its_share_of_each_batch_from_short_episodes(
    arm_dataset: Path,
) -> None:
    lengths = start(arm_dataset).arms[0].store.seq_lengths
    limit = int(np.median(lengths))
    assert lengths.max() > limit
    learner = start(arm_dataset, batch_size=4, short_decisions=limit, short_fraction=0.75)
    for _ in range(10):
        decisions = np.bincount(learner.collect()[0].episode_index)
        assert decisions[-1] <= limit  # the short ones come last


def test_the_past_of_a_query_is_in_its_batch_but_not_in_a_window(arm_dataset: Path) -> None:
    episodes = start(arm_dataset, short_decisions=0).collect()[0]
    assert episodes.decision.max() > 2
    assert len(episodes.loss_index) < len(episodes.images)
    windows = start(arm_dataset, sampling="frame").collect()[0]
    assert not windows.decision.any()
    assert len(windows.loss_index) == len(windows.images) == 3


@pytest.mark.parametrize("unit", ["sequence", pytest.param("frame", marks=pytest.mark.slow)])
def test_it_learns_the_data(unit: str, arm_dataset: Path) -> None:
    config = tiny_config()
    config = replace(config, policy=replace(config.policy, memory=none.Config()))
    learner = start(arm_dataset, config, sampling=unit, batch_size=7)
    optimizer = Optimizer(OptimizerConfig(lr=3e-3, warmup_steps=1), learner.module, steps=60)
    generator = torch.Generator().manual_seed(0)
    learner.module.train()
    rows = [learner.update(learner.collect(), optimizer, generator) for _ in range(60)]
    losses = [row["loss"] for row in rows]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:3])
    assert all(row["samples"] > 0 for row in rows)


def test_a_data_set_of_another_arm_is_told(fake_dataset: Path) -> None:
    with pytest.raises(
        ValueError, match=r"2 states and 2 actions \(joint, gripper\), the robot has 6 channels"
    ):
        start(fake_dataset)


def test_a_camera_the_data_set_lacks_is_told(arm_dataset: Path) -> None:
    config = tiny_config()
    config = replace(config, policy=replace(config.policy, cameras=("front", "side")))
    with pytest.raises(ValueError, match="side"):
        start(arm_dataset, config)


def test_two_data_sets_share_every_batch_and_each_keeps_its_words(
    arm_dataset: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(arm_dataset, other)
    single, config = start(arm_dataset), tiny_config(co_tasks=("push",), co_fraction=1 / 3)
    with pytest.raises(ValueError, match="got 1 data sets for 2 tasks"):
        start(arm_dataset, config)
    learner = config.algo.start(config, (arm_dataset, other))
    episodes = len(single.arms[0].store.tasks)
    assert learner.arms[0].store.tasks == 2 * single.arms[0].store.tasks
    assert len(learner.arms[0].store.frames) == 2 * len(single.arms[0].store.frames)
    for part in (0, 1):
        rows = learner.arms[0].store.frame_episode // episodes == part
        np.testing.assert_array_equal(
            learner.arms[0].store.frames[rows], single.arms[0].store.frames
        )
    np.testing.assert_array_equal(
        learner.arms[0].store.action_chunks(np.array([episodes]), np.array([0]), 4)[0],
        single.arms[0].store.action_chunks(np.array([0]), np.array([0]), 4)[0],
    )
    drawn = np.concatenate([learner.arms[0].stream.next() for _ in range(6)]).reshape(6, 3)
    of_other = learner.arms[0].store.seq_episode[drawn] >= episodes
    assert of_other.sum(1).tolist() == [1] * 6
    assert learner.collect()[0].images.shape[0] > 0


def test_every_task_has_its_own_number_of_decision_grids(arm_dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(arm_dataset, other)

    def algo(*numbers: int) -> bc.Config:
        return replace(tiny_config().algo, num_phase_offsets=2, co_num_phase_offsets=numbers)

    config = tiny_config(co_tasks=("push",), algo=algo(1))
    store = config.algo.start(config, (arm_dataset, other)).arms[0].store
    episodes = len(store.tasks) // 2
    of_other = store.seq_episode >= episodes
    assert of_other.sum() == episodes
    assert (~of_other).sum() == 2 * episodes
    config = tiny_config(co_tasks=("push",), algo=algo(1, 1))
    with pytest.raises(ValueError, match="co_num_phase_offsets: got 2 numbers for 1 co_tasks"):
        config.algo.start(config, (arm_dataset, other))
    with pytest.raises(ValueError, match="co_num_phase_offsets: got .*expected at least 1 each"):
        algo(0)


def test_data_sets_that_do_not_fit_together_are_refused(
    arm_dataset: Path, fake_dataset: Path
) -> None:
    a = load_episodes(arm_dataset, image_hw=(32, 32), stride=2)
    b = load_episodes(arm_dataset, image_hw=(32, 32), stride=3)
    with pytest.raises(ValueError, match="decisions every 3, expected 2"):
        concatenate([a, b])
    other = load_episodes(fake_dataset, image_hw=(32, 32), stride=2)
    with pytest.raises(ValueError, match="learn from data sets of one arm"):
        concatenate([a, other])


def test_an_unknown_further_task_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    config = tiny_config(co_tasks=("juggle",))
    with pytest.raises(ValueError, match="juggle"):
        train.train(config, tmp_path / "run", (), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []
