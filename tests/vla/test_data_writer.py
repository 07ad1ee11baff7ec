"""What the writer leaves on disk, seen by stock LeRobot and by pixels."""

import dataclasses
import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.datasets import EPISODES
from tests.fake_episodes import COLOURS, SQUARE_PX, fake_episode, fake_robot
from tests.lerobot_versions import stock
from vla.data.reader import open_dataset
from vla.data.remux import CameraVideos
from vla.data.stats import column_stats, merge_stats
from vla.data.store import load_episodes
from vla.data.writer import dataset_features, merge_shards, write_shard

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def test_stock_lerobot_reads_back_what_was_recorded(fake_dataset: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    stock = LeRobotDataset("local/fake", root=fake_dataset, video_backend="pyav")
    store = load_episodes(fake_dataset, image_hw=(32, 32))
    assert stock.num_episodes == EPISODES
    row = 0
    for index in range(EPISODES):
        episode = fake_episode("push", 7, index)
        for t in range(len(episode.action)):
            item = stock[row]
            assert (item["episode_index"], item["frame_index"]) == (index, t)
            assert item["task"] == f"push {index % 2}"
            assert item["behaviour"] == "expert"
            assert bool(item["success"]) == episode.success[t]
            np.testing.assert_array_equal(item["action"].numpy(), episode.action[t])
            np.testing.assert_array_equal(item["observation.state"].numpy(), episode.proprio[t])
            for view, name in enumerate(("front", "wrist")):
                pixels = item[f"observation.images.{name}"].numpy().transpose(1, 2, 0) * 255
                np.testing.assert_allclose(pixels, store.frames[row, view], atol=0.01)
            row += 1
    assert row == stock.num_frames


def test_statistics_of_a_merged_set_are_those_of_its_frames(fake_dataset: Path) -> None:
    stats = stock("load_stats")(fake_dataset)
    action = np.concatenate([fake_episode("push", 7, i).action for i in range(EPISODES)])
    np.testing.assert_allclose(stats["action"]["mean"], action.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(stats["action"]["std"], action.std(axis=0), atol=1e-5)
    np.testing.assert_allclose(stats["action"]["max"], action.max(axis=0))
    assert stats["observation.images.front"]["mean"].shape == (3, 1, 1)
    assert 0 < stats["observation.images.front"]["mean"].mean() < 1


def test_policies_see_no_column_beyond_cameras_state_and_action() -> None:
    features = stock("dataset_to_policy_features")(dataset_features(fake_robot()))
    assert set(features) == {
        "observation.images.front",
        "observation.images.wrist",
        "observation.state",
        "action",
    }


def test_small_coloured_squares_keep_their_colour(fake_dataset: Path) -> None:
    store = load_episodes(fake_dataset, image_hw=(32, 32))
    errors = []
    for index in range(4):
        begin = store.seq_offsets[index]
        for t in range(store.seq_lengths[index]):
            square = store.frames[begin + t, 0, 8 : 8 + SQUARE_PX, 4 + t : 4 + t + SQUARE_PX]
            errors.append(np.abs(square.astype(int) - COLOURS[index]).mean())
    # Adjacent palette colours differ by more than 100; 4:2:0 at LeRobot's crf 30 errs by 25 here.
    assert np.max(errors) < 12


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def episodes():
        yield fake_episode("push", 7, 0)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_shard(tmp_path / "shard", fake_robot(), episodes(), {})
    assert os.listdir(tmp_path) == []


def test_a_control_rate_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    robot = dataclasses.replace(fake_robot(), control_hz=12.5)
    with pytest.raises(ValueError, match=r"whole control rate, got 12\.5"):
        write_shard(tmp_path / "shard", robot, [fake_episode("push", 7, 0)], {})


def test_images_of_another_size_than_the_cameras_are_refused(tmp_path: Path) -> None:
    episode = fake_episode("push", 7, 0, robot=fake_robot(40))
    with pytest.raises(ValueError, match="expected images"):
        write_shard(tmp_path / "shard", fake_robot(32), [episode], {})


def test_a_merged_set_says_where_each_episode_lies(fake_dataset: Path) -> None:
    info = open_dataset(fake_dataset)
    lengths = [len(fake_episode("push", 7, i).action) for i in range(EPISODES)]
    assert info.lengths.tolist() == lengths
    assert info.tasks == ("push 0", "push 1", "push 0", "push 1", "push 0")
    assert info.recording == {"seed": 7}
    # Episodes 0 to 2 share the first shard's file, 3 and 4 the second's.
    start = info.video_start["observation.images.front"].tolist()
    assert start == [0, lengths[0], lengths[0] + lengths[1], 0, lengths[3]]


def test_a_shard_of_several_video_files_is_merged_with_all_of_them(tmp_path, monkeypatch) -> None:
    small = functools.partialmethod(CameraVideos.__init__, file_bytes=1)
    monkeypatch.setattr(CameraVideos, "__init__", small)
    for name, indices in (("a", (0, 1)), ("b", (2,))):
        write_shard(
            tmp_path / name, fake_robot(), (fake_episode("push", 7, i) for i in indices), {}
        )
    info = merge_shards([tmp_path / "a", tmp_path / "b"], tmp_path / "all", {})
    names = [path.name for path in info.video_file["observation.images.wrist"]]
    assert names == ["file-000.mp4", "file-001.mp4", "file-002.mp4"]
    frames = load_episodes(info.path, image_hw=(32, 32)).frames
    for name, begin, end in (("a", 0, info.offsets[2]), ("b", info.offsets[2], info.offsets[3])):
        shard = load_episodes(tmp_path / name, image_hw=(32, 32)).frames
        np.testing.assert_array_equal(frames[begin:end], shard)


def test_an_empty_data_set_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got no episode to write, expected at least one"):
        write_shard(tmp_path / "shard", fake_robot(), [], {})
    assert os.listdir(tmp_path) == []


def test_frames_without_a_number_do_not_count_in_statistics() -> None:
    values, missing = np.array([1.0, np.nan, 3.0]), np.full(2, np.nan)
    stats = column_stats(values)
    assert (stats["count"], stats["mean"], stats["max"]) == (2, 2.0, 3.0)
    assert all(v == 0 for v in column_stats(missing).values())
    assert merge_stats([column_stats(missing), stats]) == merge_stats([stats])
    assert merge_stats([column_stats(missing)] * 2)["count"] == 0


def test_statistics_are_written_in_one_order(tmp_path: Path) -> None:
    write_shard(tmp_path / "set", fake_robot(), [fake_episode("push", 5, 0)], {})
    written = json.loads((tmp_path / "set/meta/stats.json").read_text())
    assert list(written) == sorted(written)
    assert all(list(figures) == sorted(figures) for figures in written.values())
