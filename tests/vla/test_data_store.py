"""Decision frames, action chunks and the cache; also data sets that stock LeRobot wrote."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fake_episodes import fake_episode
from tests.lerobot_versions import NEW, codec
from vla.data import store
from vla.data.store import JoinedFrames, choose_decisions, load_episodes, statistics


def stock_dataset(root: Path, dtype: str, vcodec: str = "h264") -> list[dict[str, Any]]:
    """Write three episodes with one tall camera through stock LeRobot; return the frames given."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.image": {
            "dtype": dtype,
            "shape": (48, 64, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.state": {
            "dtype": "float32",
            "shape": (3,),
            "names": {"axes": ["x", "y", "z"]},
        },
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create(
        "local/stock", 20, features, root=root, use_videos=dtype == "video", **codec(vcodec)
    )
    # A new file for every episode, a new chunk for every other file.
    dataset.meta.update_chunk_settings(
        chunks_size=2, data_files_size_in_mb=1e-6, video_files_size_in_mb=1e-6
    )
    rng = np.random.default_rng(0)
    given = []
    for length in (5, 8, 6):
        for t in range(length):
            pixels = np.full((48, 64, 3), (40 * length - 100, 20 * t, 90), np.uint8)
            frame = {
                "observation.image": pixels,
                "observation.state": rng.normal(size=3).astype(np.float32),
                "action": rng.normal(size=2).astype(np.float32),
            }
            given.append(dict(frame))
            dataset.add_frame({**frame, "task": f"do {length}"})
        dataset.save_episode()
    dataset.finalize()
    return given


@pytest.mark.skipif(not NEW, reason="LeRobot 0.6, which needs Python 3.12, writes such columns")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_depth_and_language_columns_of_lerobot_06_are_left_alone(tmp_path: Path) -> None:
    from lerobot.datasets.language import language_feature_info
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = ["height", "width", "channels"]
    features = {
        "observation.images.front": {"dtype": "video", "shape": (48, 64, 3), "names": names},
        "observation.images.depth": {
            "dtype": "video", "shape": (48, 64, 1), "names": names, "info": {"is_depth_map": True},
        },
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }  # fmt: skip
    place = tmp_path / "set"
    written = LeRobotDataset.create("local/depth", 20, features, root=place, **codec("h264"))
    for t in range(6):
        written.add_frame({
            "observation.images.front": np.full((48, 64, 3), 40 * t, np.uint8),
            "observation.images.depth": np.full((48, 64, 1), 500 + t, np.uint16),
            "observation.state": np.full(2, t, np.float32), "action": np.zeros(2, np.float32),
            "task": "look",
        })  # fmt: skip
    written.save_episode()
    written.finalize()
    file, info = next(place.glob("data/*/*.parquet")), place / "meta" / "info.json"
    table, described = pq.read_table(file), json.loads(info.read_text())
    for name, feature in language_feature_info().items():  # as `lerobot-annotate` adds them
        described["features"][name] = {**feature, "shape": list(feature["shape"])}
        table = table.append_column(name, pa.array([[] for _ in range(6)], pa.list_(pa.string())))
    pq.write_table(table, file)
    info.write_text(json.dumps(described))
    store = load_episodes(place, image_hw=(48, 64))
    assert store.cameras == ("front",)
    assert store.frames.shape == (6, 1, 48, 64, 3)
    np.testing.assert_array_equal(store.states[:, 0], np.arange(6))


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("dtype", ["video", "image"])
def test_a_set_by_stock_lerobot_in_many_files_is_read(tmp_path: Path, dtype: str) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    given = stock_dataset(tmp_path / "set", dtype)
    store = load_episodes(tmp_path / "set", image_hw=(48, 64))
    assert len(list((tmp_path / "set/data").glob("*/*.parquet"))) == 3
    assert store.cameras == ("image",)
    assert store.tasks == ("do 5", "do 8", "do 6")
    assert store.info.state_names == ("x", "y", "z")
    assert store.info.action_names == ("action[0]", "action[1]")
    assert store.seq_offsets.tolist() == [0, 5, 13, 19]
    np.testing.assert_array_equal(store.actions, np.stack([f["action"] for f in given]))
    np.testing.assert_array_equal(store.states, np.stack([f["observation.state"] for f in given]))
    stock = LeRobotDataset("local/stock", root=tmp_path / "set", video_backend="pyav")
    for row in (0, 4, 5, 12, 13, 18):
        pixels = stock[row]["observation.image"].numpy().transpose(1, 2, 0) * 255
        np.testing.assert_allclose(store.frames[row, 0], pixels, atol=0.01)
        off = np.abs(store.frames[row, 0].astype(int) - given[row]["observation.image"])
        assert off.max() <= (0 if dtype == "image" else 12)


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
def test_frames_of_an_av1_video_with_skipping_equal_those_without(tmp_path: Path) -> None:
    stock_dataset(tmp_path / "set", "video", "libsvtav1")
    every = load_episodes(tmp_path / "set", image_hw=(24, 24))
    some = load_episodes(tmp_path / "set", image_hw=(24, 24), stride=4, phase_seed=3)
    rows = every.rows(some.frame_episode, some.frame_time)
    np.testing.assert_array_equal(some.frames, every.frames[rows])


def test_decisions_are_a_stride_apart_from_the_first_step_and_from_others(
    fake_dataset: Path,
) -> None:
    every = load_episodes(fake_dataset, image_hw=(32, 32))
    some = load_episodes(fake_dataset, image_hw=(32, 32), stride=4, phase_seed=1, phases=2)
    assert every.frame_time[:9].tolist() == list(range(9))
    starts = some.frame_time[some.seq_offsets[:-1]]
    assert np.all(starts[::2] == 0)
    assert np.all((starts[1::2] > 0) & (starts[1::2] < 4))
    assert len(np.unique(starts[1::2])) > 1
    sequence = np.repeat(np.arange(len(starts)), some.seq_lengths)
    within = np.diff(some.frame_time)[np.diff(sequence) == 0]
    assert set(within.tolist()) == {4}
    rows = every.rows(some.frame_episode, some.frame_time)
    np.testing.assert_array_equal(some.frames, every.frames[rows])


def test_two_phases_give_two_sequences_per_episode_without_a_frame_in_common() -> None:
    choice, offsets, episode = choose_decisions(np.array([10, 3]), 5, 0, 2)
    assert episode.tolist() in ([0, 0, 1, 1], [0, 0, 1])
    seen = set(zip(choice.episode.tolist(), choice.step.tolist(), strict=True))
    assert len(seen) == len(choice.step) == offsets[-1]
    assert all(t < (10, 3)[e] for e, t in seen)


def test_an_episode_shorter_than_its_phase_still_gives_its_first_frame() -> None:
    choice, _, episode = choose_decisions(np.ones(20, np.int64), 8, 0, 1)
    assert episode.tolist() == list(range(20))
    assert choice.step.tolist() == [0] * 20


def test_more_phases_than_steps_in_a_stride_are_refused(fake_dataset: Path) -> None:
    with pytest.raises(ValueError, match="phases from 1 to the stride 2, got 3"):
        load_episodes(fake_dataset, stride=2, phases=3)


def test_action_chunks_repeat_the_last_action_and_mark_it_as_padding(fake_dataset: Path) -> None:
    store = load_episodes(fake_dataset, image_hw=(32, 32))
    action = fake_episode("push", 7, 1).action
    last = len(action) - 1
    chunk, pad = store.action_chunks(np.array([1, 1]), np.array([0, last - 1]), 4)
    np.testing.assert_array_equal(chunk[0], action[:4])
    np.testing.assert_array_equal(chunk[1], action[[last - 1, last, last, last]])
    assert pad.tolist() == [[False] * 4, [False, False, True, True]]
    assert chunk.dtype == np.float32


def test_a_step_outside_its_episode_is_refused(fake_dataset: Path) -> None:
    store = load_episodes(fake_dataset, image_hw=(32, 32))
    with pytest.raises(ValueError, match="outside its episode"):
        store.action_chunks(np.array([0]), store.info.lengths[:1], 4)


def test_progress_and_success_come_along(fake_dataset: Path) -> None:
    store = load_episodes(fake_dataset, image_hw=(32, 32))
    end = store.step_offsets[1]
    np.testing.assert_array_equal(
        store.scalars["progress"][:end], fake_episode("push", 7, 0).progress
    )
    assert store.scalars["success"][:end].tolist() == [0.0] * (end - 1) + [1.0]


def test_statistics_of_a_hundred_and_one_numbers() -> None:
    stats = statistics(np.arange(101, dtype=np.float32)[:, None])
    found = [stats.min, stats.max, stats.mean]
    assert [float(value[0]) for value in found] == [0.0, 100.0, 50.0]
    assert stats.std == pytest.approx(np.sqrt((101**2 - 1) / 12))  # of the integers 0 to 100


def test_a_cache_hit_equals_a_cold_read(fake_dataset: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"image_hw": (24, 24), "stride": 3, "phases": 2}
    cold = load_episodes(fake_dataset, **arguments)
    load_episodes(fake_dataset, **arguments, cache_dir=tmp_path)
    (entry,) = tmp_path.iterdir()
    before = {f: f.stat().st_mtime_ns for f in entry.rglob("*")}
    warm = load_episodes(fake_dataset, **arguments, cache_dir=tmp_path)
    np.testing.assert_array_equal(warm.frames, cold.frames)
    assert {f: f.stat().st_mtime_ns for f in entry.rglob("*")} == before
    load_episodes(fake_dataset, **{**arguments, "stride": 4}, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("0", flip),
        ("0", lambda file: file.write_bytes(file.read_bytes()[:500])),
        ("0", Path.unlink),
        ("zarr.json", lambda file: file.write_text("{")),
    ],
    ids=["bit flipped", "truncated", "missing", "metadata"],
)
def test_a_damaged_cache_is_rebuilt(
    fake_dataset: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any]
) -> None:
    cold = load_episodes(fake_dataset, image_hw=(24, 24), cache_dir=tmp_path)
    (file,) = (f for f in tmp_path.rglob(name) if f.is_file())
    whole = file.read_bytes()
    damage(file)
    again = load_episodes(fake_dataset, image_hw=(24, 24), cache_dir=tmp_path)
    np.testing.assert_array_equal(again.frames, cold.frames)
    assert file.read_bytes() == whole


def test_frames_beyond_memory_are_the_same_from_a_mapped_file(
    fake_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"image_hw": (24, 24), "stride": 3, "cache_dir": tmp_path}
    within = load_episodes(fake_dataset, **arguments)
    assert not isinstance(within.frames, np.memmap)
    monkeypatch.setattr(store, "available_bytes", lambda: 2 * within.frames.nbytes - 1)
    (cache,) = tmp_path.glob("*.zarr")
    part = cache.with_suffix(".part")
    part.write_bytes(b"what a killed process left")
    beyond = load_episodes(fake_dataset, **arguments)
    assert not part.exists()
    assert isinstance(beyond.frames, np.memmap)
    np.testing.assert_array_equal(beyond.frames, within.frames)
    assert [f.suffix for f in sorted(tmp_path.iterdir())] == [".lock", ".npy", ".zarr"]
    monkeypatch.setattr(store, "decode_views", None)  # the file is there
    np.testing.assert_array_equal(load_episodes(fake_dataset, **arguments).frames, within.frames)
    monkeypatch.undo()
    monkeypatch.setattr(store, "available_bytes", lambda: 0)
    (file,) = tmp_path.glob("*.npy")
    os.truncate(file, file.stat().st_size - 1)
    np.testing.assert_array_equal(load_episodes(fake_dataset, **arguments).frames, within.frames)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage._replace(free=10))
    file.unlink()
    with pytest.raises(ValueError, match=r"decoded frames need .* GB, 0\.0 GB are free; free some"):
        load_episodes(fake_dataset, **arguments)


def test_joined_frames_read_as_one_array() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 256, (count, 2, 4, 4, 3), np.uint8) for count in (5, 1, 7)]
    joined, whole = JoinedFrames(parts), np.concatenate(parts)
    assert joined.shape == whole.shape
    assert len(joined) == 13
    for rows in (np.array([12, 0, 5, 4, 6, 0]), np.arange(0), slice(3, 9)):
        np.testing.assert_array_equal(joined[rows], whole[rows])
