"""Every way in which a data set can be bad, and the sentence that says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vla.data.reader import open_dataset
from vla.data.store import load_episodes

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"


@pytest.fixture
def copy(fake_dataset: Path, tmp_path: Path) -> Path:
    """Return a copy of the fake data set to damage."""
    return Path(shutil.copytree(fake_dataset, tmp_path / "copy"))


def edit_info(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    info = json.loads((path / "meta/info.json").read_text())
    change(info)
    (path / "meta/info.json").write_text(json.dumps(info))


def edit_table(file: Path, name: str, change: Callable[[list[Any]], Any]) -> None:
    table = pq.read_table(file)
    values = table[name].to_pylist()
    change(values)
    column = table.schema.get_field_index(name)
    kind = table.schema.field(column)
    pq.write_table(table.set_column(column, kind, pa.array(values, kind.type)), file)


def refuse(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        open_dataset(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_path_that_is_missing_a_file_or_empty_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "does not exist; expected the directory")
    (tmp_path / "file").touch()
    refuse(tmp_path / "file", "is not a directory")
    refuse(tmp_path, r"no meta/info\.json")


def test_a_damaged_info_file_is_named(copy: Path) -> None:
    (copy / "meta/info.json").write_text('{"codebase_version": "v3')
    refuse(copy, r"info\.json: damaged .* copy the data set again")


def test_version_2_is_told_how_to_convert(copy: Path) -> None:
    edit_info(copy, lambda info: info.update(codebase_version="v2.1"))
    refuse(copy, "is LeRobotDataset v2.1, expected v3.0; convert it with vla data import")


def test_an_unknown_version_is_refused(copy: Path) -> None:
    edit_info(copy, lambda info: info.update(codebase_version="v9.0"))
    refuse(copy, "is LeRobotDataset v9.0, expected v3.0")


@pytest.mark.parametrize("key", ["action", "observation.state"])
def test_a_missing_column_is_named(copy: Path, key: str) -> None:
    edit_info(copy, lambda info: info["features"].pop(key))
    refuse(copy, f"has no column '{key}' .*rename")


def test_a_column_in_the_description_but_not_in_the_table_is_named(copy: Path) -> None:
    pq.write_table(pq.read_table(copy / DATA).drop_columns(["action"]), copy / DATA)
    refuse(copy, "file-000.parquet: has no column 'action'")


def test_a_set_without_cameras_is_refused(copy: Path) -> None:
    def drop(info: dict[str, Any]) -> None:
        for key in ("observation.images.front", "observation.images.wrist"):
            info["features"].pop(key)

    edit_info(copy, drop)
    refuse(copy, "has no camera .*observation.images.NAME")


@pytest.mark.parametrize("file", [DATA, EPISODES, "meta/tasks.parquet"])
def test_a_truncated_table_is_named(copy: Path, file: str) -> None:
    content = (copy / file).read_bytes()
    (copy / file).write_bytes(content[: len(content) // 2])
    refuse(copy, f"{Path(file).name}: cannot be read")


def test_a_table_that_was_never_finalised_is_named(copy: Path) -> None:
    table = pq.read_table(copy / DATA)
    writer = pq.ParquetWriter(copy / "other", table.schema)
    writer.write_table(table)
    shutil.copy(copy / "other", copy / DATA)  # what a kill leaves: no footer
    writer.close()
    refuse(copy, r"killed before finalize\(\)")


@pytest.mark.parametrize(("key", "got"), [("total_frames", 999), ("total_episodes", 6)])
def test_counts_that_disagree_are_reported(copy: Path, key: str, got: int) -> None:
    edit_info(copy, lambda info: info.update({key: got}))
    refuse(copy, rf"info\.json counts {got} {key.removeprefix('total_')} but data/ holds")


def test_an_episode_table_that_is_too_short_is_reported(copy: Path) -> None:
    pq.write_table(pq.read_table(copy / EPISODES).slice(0, 4), copy / EPISODES)
    refuse(copy, "meta/episodes lists 4 episodes but data/ holds 5")


def test_an_episode_of_another_length_than_its_frames_is_reported(copy: Path) -> None:
    edit_table(copy / EPISODES, "length", lambda values: values.__setitem__(2, 99))
    refuse(copy, "gives episode 2 99 frames but data/ holds")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_located(copy: Path, bad: float) -> None:
    first = int(open_dataset(copy).offsets[3])
    edit_table(copy / DATA, "action", lambda rows: rows[first + 1].__setitem__(1, bad))
    refuse(copy, f"'action' of episode 3, frame 1, channel 'gripper' is {bad}")


def test_actions_of_another_width_than_described_are_refused(copy: Path) -> None:
    def widen(info: dict[str, Any]) -> None:
        info["features"]["action"]["shape"] = [3]

    edit_info(copy, widen)
    refuse(copy, r"'action' .*2 values.*info\.json says 3")


def test_frames_with_gaps_are_reported(copy: Path) -> None:
    edit_table(copy / DATA, "frame_index", lambda values: values.__setitem__(3, 77))
    refuse(copy, "frames of episode 0 are not numbered")


def test_an_instruction_that_is_not_listed_is_reported(copy: Path) -> None:
    edit_table(copy / DATA, "task_index", lambda values: values.__setitem__(0, 8))
    refuse(copy, r"task_index 8 is not in meta/tasks\.parquet")


def test_a_missing_empty_or_truncated_video_is_named(copy: Path) -> None:
    content = (copy / VIDEO).read_bytes()
    (copy / VIDEO).write_bytes(content[:-100])
    refuse(copy, f"file-000.mp4: is truncated .{len(content) - 100} bytes")
    (copy / VIDEO).write_bytes(b"")
    refuse(copy, r"file-000.mp4: is empty \(0 bytes\)")
    (copy / VIDEO).unlink()
    refuse(copy, "file-000.mp4: is missing")


def test_a_video_with_too_few_frames_is_named(copy: Path) -> None:
    shutil.copy(copy / VIDEO.replace("000.mp4", "001.mp4"), copy / VIDEO)
    refuse(copy, "file-000.mp4: holds .* frames but its episodes need")


def test_a_video_damaged_inside_is_named_when_it_is_read(copy: Path) -> None:
    content = bytearray((copy / VIDEO).read_bytes())
    start = content.index(b"mdat") + 4
    end = content.index(b"moov") - 4 if content.index(b"moov") > start else len(content)
    content[start:end] = bytes(end - start)
    (copy / VIDEO).write_bytes(content)
    with pytest.raises(ValueError, match="file-000.mp4: (cannot be decoded|has no frame)"):
        load_episodes(copy, image_hw=(32, 32))


def test_an_unknown_camera_is_answered_with_the_known_ones(copy: Path) -> None:
    with pytest.raises(ValueError, match="no camera 'top'; it has front, wrist"):
        load_episodes(copy, cameras=("top",), image_hw=(32, 32))
