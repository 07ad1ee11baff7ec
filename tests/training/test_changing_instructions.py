"""Instructions that change within an episode: from the recorder to what a policy reads."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fake_episodes import FakeEpisode, fake_episode, fake_robot
from tests.fakes import fake_policy
from training.data import batches
from vla.data.inspection import page
from vla.data.reader import open_dataset
from vla.data.store import EpisodeStore, concatenate, load_episodes
from vla.data.writer import merge_shards, write_shard

EPISODES = 3
CHANGES_AT = 4


def told(index: int, step: int) -> str:
    """Return what episode `index` is told at a step; episode 1 is told one thing alone."""
    return "wait" if step < CHANGES_AT and index != 1 else f"push {index}"


def episode(index: int) -> FakeEpisode:
    plain = fake_episode("push", 7, index)
    texts = tuple(told(index, t) for t in range(len(plain.action)))
    texts = texts if len(set(texts)) > 1 else ()
    return dataclasses.replace(plain, instruction=told(index, 0), instructions=texts)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set that was merged from two shards."""
    folder = tmp_path_factory.mktemp("changing")
    for name, indices in (("a", (0, 1)), ("b", (2,))):
        write_shard(folder / name, fake_robot(), (episode(i) for i in indices), {})
    return merge_shards([folder / "a", folder / "b"], folder / "all", {}).path


@pytest.fixture(scope="module")
def store(changing: Path) -> EpisodeStore:
    return load_episodes(changing, image_hw=(16, 16), stride=2)


def test_stock_lerobot_reads_the_instruction_of_every_frame(changing: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    stock = LeRobotDataset("local/changing", root=changing, video_backend="pyav")
    seen = [(int(x["episode_index"]), int(x["frame_index"]), x["task"]) for x in stock]
    assert [text for *_, text in seen] == [told(index, step) for index, step, _ in seen]


def test_a_store_tells_the_instruction_at_any_step(store: EpisodeStore) -> None:
    assert store.tasks == ("wait", "push 1", "wait")
    assert store.info.instructions == ("push 0", "push 1", "push 2", "wait")
    where = np.array([0, 0, 1, 2, 2]), np.array([3, 4, 0, 0, 8])
    assert store.instructions_at(*where) == ("wait", "push 0", "push 1", "wait", "push 2")


def test_the_inspection_counts_every_instruction(changing: Path) -> None:
    assert page.tasks(open_dataset(changing)) == {"wait": 2, "push 0": 1, "push 1": 1, "push 2": 1}


def test_joined_stores_keep_the_instructions_of_each(store, fake_dataset: Path) -> None:
    plain = load_episodes(fake_dataset, image_hw=(16, 16), stride=2)
    both = concatenate([plain, store, plain])
    first, after = len(plain.tasks), len(plain.tasks) + EPISODES
    where = np.array([1, first, first, after]), np.array([5, 3, 4, 5])
    assert both.instructions_at(*where) == ("push 1", "wait", "push 0", "push 0")


def test_an_unchanging_data_set_costs_nothing(fake_dataset: Path) -> None:
    info = open_dataset(fake_dataset)
    assert info.frame_text is None
    assert info.instructions == ("push 0", "push 1")


def test_a_batch_of_episodes_has_the_instruction_of_every_decision(store) -> None:
    weights, rng = np.ones(len(store.frames), np.float32), np.random.default_rng(0)
    batch = batches.episode_batch(store, np.array([2, 0, 1]), 4, 2, weights, rng)
    assert batch.task == ("wait", "wait", "push 1")
    steps = zip(batch.episode_index.tolist(), batch.step_index.tolist(), strict=True)
    assert batch.frame_task == tuple(told((2, 0, 1)[row], int(step)) for row, step in steps)


def test_a_batch_of_decisions_has_the_instruction_of_each(store) -> None:
    frames = np.array([0, 3, len(store.frames) - 1])
    batch = batches.frame_batch(store, frames, 4)
    assert batch.task == ("wait", "push 0", "push 2")


def test_a_policy_learns_from_what_it_was_told_at_each_decision(store) -> None:
    policy = fake_policy().train()
    weights, rng = np.ones(len(store.frames), np.float32), np.random.default_rng(0)
    batch = batches.episode_batch(
        store, np.array([0, 2]), policy.config.chunk_size, 9, weights, rng
    )
    words = ("red", "blue")

    def loss(texts: list[str]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        renamed = dataclasses.replace(batch, frame_task=tuple(texts), task=("red",) * 2)
        return policy.bc_loss(renamed, generator)[0]

    same = [words[0]] * len(batch.images)
    late = [words[int(step >= CHANGES_AT)] for step in batch.step_index]
    assert not torch.equal(loss(same), loss(late))
    alone = dataclasses.replace(batch, frame_task=None, task=("red",) * 2)
    assert torch.equal(loss(same), policy.bc_loss(alone, torch.Generator().manual_seed(0))[0])
