"""The labelled data set as stock LeRobot sees it, and the source as it was left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from reward_models.label import write
from reward_models.label.columns import EPISODE_COLUMNS, FRAME_COLUMNS
from reward_models.label.plan import prepare
from reward_models.label.settings import LabelArgs
from reward_models.label.source import checksums
from tests.datasets import EPISODES
from tests.fake_episodes import fake_episode
from tests.lerobot_versions import features_of, stock
from vla.data.reader import open_dataset, read_columns
from vla.data.store import load_episodes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
DATA, ROWS = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture
def labelled(run: Callable[..., Path]) -> Path:
    """The fake data set, labelled by the oracle: progress is the truth, half from single frames."""
    return run()


def test_stock_lerobot_loads_every_column_of_every_frame(labelled: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    stock = LeRobotDataset("local/labelled", root=labelled, video_backend="pyav")
    assert stock.num_episodes == EPISODES
    row = 0
    for index in range(EPISODES):
        episode = fake_episode("push", 7, index)
        for t in range(len(episode.action)):
            item = stock[row]
            assert set(FRAME_COLUMNS) <= set(item)
            assert item["observation.images.front"].shape == (3, 32, 32)
            np.testing.assert_array_equal(item["action"].numpy(), episode.action[t])
            assert item["progress"].item() == pytest.approx(episode.progress[t], abs=1e-5)
            assert item["source.progress"].item() == episode.progress[t]
            assert item["source.behaviour"] == "expert"
            assert bool(item["next.done"]) == (t == len(episode.action) - 1)
            row += 1
    assert row == stock.num_frames


def test_stock_lerobot_finds_figures_of_episodes_and_statistics_of_columns(labelled: Path) -> None:
    from lerobot.datasets.compute_stats import aggregate_stats, get_feature_stats
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata("local/labelled", root=labelled)
    for index in range(EPISODES):
        row = meta.episodes[index]
        assert set(EPISODE_COLUMNS) <= set(row)
        assert row["labels/success_prob"] == pytest.approx(1.0)
        assert row["labels/first_done_frame"] == row["length"] - 1
        assert row["labels/review"] is False
    values = read_columns(open_dataset(labelled)).scalars["progress"].astype(np.float64)
    theirs = get_feature_stats(values, axis=0, keepdims=True)
    for name, value in theirs.items():  # their quantiles come from a histogram
        np.testing.assert_allclose(meta.stats["progress"][name], value, atol=0.01, err_msg=name)
    assert meta.stats["progress"]["count"].shape == (1,)
    table = pq.read_table(labelled / ROWS).to_pylist()
    each = [
        {
            name: {k: np.array(row[f"stats/{name}/{k}"]) for k in write.NAMES}
            for name in (*FRAME_COLUMNS, "source.progress", "action")
        }
        for row in table
    ]
    joined = aggregate_stats(each)
    for name in FRAME_COLUMNS:
        np.testing.assert_allclose(joined[name]["mean"], meta.stats[name]["mean"], atol=1e-6)
        np.testing.assert_allclose(joined[name]["std"], meta.stats[name]["std"], atol=1e-6)


def test_policies_see_no_further_column(fake_dataset: Path, labelled: Path) -> None:
    seen = stock("dataset_to_policy_features")
    assert seen(features_of(labelled)) == seen(features_of(fake_dataset))


def test_stock_lerobot_weighs_frames_by_the_sidecar(labelled: Path) -> None:
    weigh = stock("RABCWeights")(
        labelled / "sarm_progress.parquet", chunk_size=4, device=torch.device("cpu")
    )
    found, told = weigh.compute_batch_weights({"index": torch.arange(8)})
    assert told["num_full_weight"] == 8  # the expert makes progress in every chunk
    np.testing.assert_allclose(found.numpy(), 1.0, atol=1e-5)
    rows = pq.read_table(labelled / "sarm_progress.parquet")
    assert rows["index"].to_pylist() == pq.read_table(labelled / DATA)["index"].to_pylist()


def test_our_own_reader_opens_it_and_trains_from_it(fake_dataset: Path, labelled: Path) -> None:
    ours, before = (load_episodes(p, image_hw=(32, 32)) for p in (labelled, fake_dataset))
    np.testing.assert_array_equal(ours.frames, before.frames)
    np.testing.assert_array_equal(ours.actions, before.actions)


def test_the_source_is_as_it_was_and_videos_take_no_room(fake_dataset: Path, run) -> None:
    before = checksums(fake_dataset)
    labelled = run()
    assert checksums(fake_dataset) == before
    told = json.loads((labelled / "meta/labels.json").read_text())["checksums"]
    assert told["before"] == told["after"] == before
    videos = list(labelled.rglob("*.mp4"))
    assert len(videos) == 4
    for video in videos:
        assert video.samefile(fake_dataset / video.relative_to(labelled))


def test_where_there_are_no_links_videos_are_copied(
    fake_dataset: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(write.os, "link", no_links)
    labelled = run()
    for video in labelled.rglob("*.mp4"):
        original = fake_dataset / video.relative_to(labelled)
        assert not video.samefile(original)
        assert video.read_bytes() == original.read_bytes()


def test_columns_of_the_same_name_are_kept_under_source(fake_dataset: Path, run) -> None:
    labelled = run(reward_model="time")
    old, new = pq.read_table(fake_dataset / DATA), pq.read_table(labelled / DATA)
    for name in ("progress", "success", "behaviour"):
        assert new[f"source.{name}"].equals(old[name])
    for name in set(old.column_names) - {"progress", "success", "behaviour"}:
        assert new[name].equals(old[name])
    stats = [json.loads((p / "meta/stats.json").read_text()) for p in (fake_dataset, labelled)]
    assert stats[1]["source.progress"] == stats[0]["progress"]
    assert stats[1]["action"] == stats[0]["action"]


def test_images_in_tables_are_rewritten_with_them(fake_dataset: Path, tmp_path: Path, run) -> None:
    place = images_in_tables(fake_dataset, tmp_path / "images")
    labelled = run(source=place)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    stock = LeRobotDataset("local/labelled", root=labelled)
    was = LeRobotDataset("local/images", root=place)
    for row in (0, stock.num_frames - 1):
        item = stock[row]
        assert item["observation.images.front"].shape == (3, 32, 32)
        torch.testing.assert_close(
            item["observation.images.front"], was[row]["observation.images.front"]
        )
        assert item["progress"].dtype == torch.float32
    noted = json.loads(pq.read_schema(labelled / DATA).metadata[b"huggingface"])
    assert noted["info"]["features"]["progress.trend"] == {"dtype": "int8", "_type": "Value"}


def images_in_tables(source: Path, folder: Path) -> Path:
    """Return a copy of a data set whose images are PNGs in its tables, as LeRobot writes them."""
    import datasets
    from PIL import Image

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("videos"))
    store = load_episodes(source, image_hw=(32, 32))
    info = json.loads((folder / "meta/info.json").read_text())
    table = pq.read_table(folder / DATA).to_pydict()
    for view, name in enumerate(("front", "wrist")):
        key = f"observation.images.{name}"
        info["features"][key] = {**info["features"][key], "dtype": "image"}
        info["features"][key].pop("info", None)
        table[key] = [Image.fromarray(frame[view]) for frame in store.frames]
    (folder / "meta/info.json").write_text(json.dumps(info))
    features = stock("get_hf_features_from_features")(features_of(folder))
    datasets.Dataset.from_dict(table, features=features).to_parquet(folder / DATA)
    rows = pq.read_table(folder / ROWS)
    places = [name for name in rows.column_names if name.startswith("videos/")]
    pq.write_table(rows.drop_columns(places), folder / ROWS)
    return folder


def test_an_edited_source_is_noticed_at_the_end(
    fake_dataset: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(fake_dataset, tmp_path / "copy"))
    true_write = write.write_dataset

    def meanwhile(*args: object) -> Path:
        (copy / "meta/tasks.parquet").touch()
        (copy / "meta/note.txt").write_text("somebody was here")
        return true_write(*args)

    monkeypatch.setattr(write, "write_dataset", meanwhile)
    with pytest.raises(ValueError, match="has changed since labelling began .meta/note.txt"):
        run(source=copy)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_corrections_stand_beside_the_labels(tmp_path: Path, run) -> None:
    said = tmp_path / "said.json"
    by = {"author": "A", "time": "2026-01-01T00:00:00+00:00"}
    said.write_text(
        json.dumps(
            [
                {"episode": 1, "frame": 3, "kind": "trend", "value": 1, **by},
                {"episode": 1, "frame": 3, "kind": "trend", "value": -1, **by},
                {"episode": 4, "frame": None, "kind": "success", "value": False, **by},
            ]
        )
    )
    labelled = run(overrides=said)
    table = pq.read_table(labelled / DATA)
    assert table.schema.field("progress.override").type == pa.int8()
    trend = table["progress.override"].to_numpy()
    begin = int(open_dataset(labelled).offsets[1])
    assert trend[begin + 3] == -1
    assert (np.delete(trend, begin + 3) == -2).all()
    success = pq.read_table(labelled / ROWS)["labels/success_override"].to_pylist()
    assert success == [-1, -1, -1, -1, 0]
    assert len(json.loads((labelled / "meta/overrides.json").read_text())) == 2


def test_smoothed_progress_is_a_column_of_its_own(run) -> None:
    columns = read_columns(open_dataset(run(smooth=True))).scalars
    assert "progress.smoothed" in columns
    assert not np.array_equal(columns["progress.smoothed"], columns["progress"])


def test_each_instruction_within_an_episode_begins_anew(
    fake_dataset: Path, tmp_path: Path, run
) -> None:
    copy = Path(shutil.copytree(fake_dataset, tmp_path / "copy"))
    table = pq.read_table(copy / DATA)
    task = table["task_index"].to_numpy().copy()
    task[5:14] = 1  # episode 0 has 14 frames of task 0
    place = table.schema.get_field_index("task_index")
    pq.write_table(table.set_column(place, "task_index", pa.array(task)), copy / DATA)
    columns = read_columns(open_dataset(run(source=copy, reward_model="time"))).scalars
    np.testing.assert_allclose(columns["progress"][[0, 4, 5, 13]], [0, 1, 0, 1], atol=1e-6)
    assert columns["next.done"][:14].tolist() == [0.0] * 13 + [1.0]


def test_an_instruction_of_ones_own_takes_the_place_of_the_recorded_ones(run, reward_model) -> None:
    recorded = run(reward_model=str(reward_model))
    out = recorded.with_name("own")
    own = run(reward_model=str(reward_model), instruction="push the red square", out=out)
    first, second = (
        read_columns(open_dataset(p)).scalars["progress"] for p in (recorded, own)
    )  # fmt: skip
    assert not np.allclose(first, second, atol=1e-6)
    assert open_dataset(own).tasks == open_dataset(recorded).tasks
    assert json.loads((own / "meta/labels.json").read_text())["asked"]["instruction"] == (
        "push the red square"
    )


def _link_out(data: Path) -> None:
    (data.parent / "secret").write_text("my key")
    (data / "meta/notes.txt").symlink_to(data.parent / "secret")


def _damage_statistics(data: Path) -> None:
    (data / "meta/stats.json").write_text('{"action": ')


def _damage_metadata(data: Path) -> None:
    table = pq.read_table(data / DATA)
    pq.write_table(table.replace_schema_metadata({b"huggingface": b"[1"}), data / DATA)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_link_out, r"notes\.txt: is a link to .*secret, outside of the data set"),
        (_damage_statistics, r"stats\.json: damaged \(Expecting value"),
        (_damage_metadata, r"file-000\.parquet: damaged \(Expecting ','"),
    ],
)
def test_what_cannot_be_copied_is_refused_before_anything_is_scored(
    damage: Callable[[Path], None], said: str, fake_dataset: Path, reward_model: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data = Path(shutil.copytree(fake_dataset, tmp_path / "data"))
    damage(data)
    with pytest.raises(ValueError, match=said):
        prepare(LabelArgs(source=data, reward_model=str(reward_model), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
