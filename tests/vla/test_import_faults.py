"""What is damaged, stopped or killed while it is imported is named, and never half there."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.hardening import other_formats
from benchmarks.hardening.other_formats import FLAT, decoded, encode, v2_video
from tests.commands.lines import content
from tests.vla.test_import import imported, same_numbers
from vla.data import import_parts, tfrecord
from vla.data.reader import open_dataset
from vla.utils.interrupted import Interrupted

FRONT = "observation.images.front"


def damage(source: Path, what: str) -> str:
    """Damage episode 1 of a copy; return words of the sentence."""
    table = source / "data/chunk-000/episode_000001.parquet"
    video = v2_video(source, FRONT, 1)
    if what == "table cut":
        table.write_bytes(table.read_bytes()[:500])
        return "episode_000001.parquet: cannot be read"
    if what == "table missing":
        table.unlink()
        return "episode_000001.parquet: is missing"
    if what == "NaN":
        found = pq.read_table(table)
        rows = found["action"].to_pylist()
        rows[4][1] = float("nan")
        place = found.schema.get_field_index("action")
        pq.write_table(
            found.set_column(place, "action", pa.array(rows, pa.list_(pa.float32()))), table
        )
        return "'action' of frame 4, channel 1 is nan"
    if what == "rows missing":
        pq.write_table(pq.read_table(table).slice(0, 5), table)
        return "has 5 frames"
    if what == "video cut":
        video.write_bytes(video.read_bytes()[:400])
        return "episode_000001.mp4: cannot be read"
    if what == "video short":
        encode(video, decoded(video)[:4], 10, FLAT)
        return "has no image within half a frame of"
    video.unlink()
    return "episode_000001.mp4: is missing"


@pytest.mark.parametrize(
    "what",
    ["table cut", "table missing", "NaN", "rows missing", "video cut", "video short", "video gone"],
)
def test_a_damaged_episode_stops_the_import_or_is_left_out_and_named(
    what, v2, fake_dataset, tmp_path
) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    words = damage(source, what)
    with pytest.raises(ValueError, match="leave-out-damaged") as error:
        imported(source, tmp_path / "v3")
    assert words in str(error.value)
    assert not (tmp_path / "v3").exists()
    info, told = imported(source, tmp_path / "left", leave_out_damaged=True)
    same_numbers(info, fake_dataset, [0, 2, 3, 4])
    assert [line for line in told if line.startswith("left out:") and words in line]


def test_damaged_episodes_may_be_left_out_and_asked_for_again_in_the_same_folder(
    v2, fake_dataset, tmp_path, monkeypatch
) -> None:
    source, out = Path(shutil.copytree(v2, tmp_path / "v2")), tmp_path / "v3"
    words = damage(source, "NaN")
    with pytest.raises(ValueError, match="leave-out-damaged"):
        imported(source, out)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("vla.data.import_command.join", stop)
        with pytest.raises(Interrupted, match="5 of 5 episodes"):
            imported(source, out, leave_out_damaged=True)
    with pytest.raises(ValueError, match="leave-out-damaged") as error:
        imported(source, out)  # what was left out is not forgotten
    assert words in str(error.value)
    info, told = imported(source, out, leave_out_damaged=True)
    same_numbers(info, fake_dataset, [0, 2, 3, 4])
    assert [line for line in told if line.startswith("left out:") and words in line]


def test_only_what_a_killed_import_of_this_set_left_is_cleared(v2, tmp_path) -> None:
    other, killed = tmp_path / ".v3.large.77.tmp", tmp_path / ".v3.77.tmp"
    other.mkdir()
    killed.mkdir()
    imported(v2, tmp_path / "v3")
    assert other.is_dir()
    assert not killed.exists()


def test_a_damaged_record_is_named_and_may_be_left_out(rlds, fake_dataset, tmp_path) -> None:
    source = Path(shutil.copytree(rlds, tmp_path / "rlds"))
    file = source / "arm-train.tfrecord-00001-of-00002"
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1  # of the first of its two records
    file.write_bytes(data)
    with pytest.raises(ValueError, match="record at byte 0 is damaged"):
        imported(source, tmp_path / "v3", fps=10)
    info, _ = imported(source, tmp_path / "left", fps=10, leave_out_damaged=True)
    same_numbers(info, fake_dataset, [0, 1, 2, 4])
    file.write_bytes(data[:-9])
    with pytest.raises(ValueError, match="is truncated"):
        imported(source, tmp_path / "cut", fps=10)


@pytest.mark.parametrize(
    ("key", "put", "words"),
    [
        ("observation/image", [1], "image 0 is damaged .got a value of type"),
        ("observation/image", [b""], "image 0 is damaged .got nothing"),
        ("observation/wrist", [b"GIF89a"], "image 0 is damaged"),
        ("language_instruction", [2], "the instruction is no text .it is 2"),
    ],
)
def test_a_record_with_something_else_for_a_picture_or_a_text_is_named(
    key, put, words, rlds, tmp_path
) -> None:
    source = Path(shutil.copytree(rlds, tmp_path / "rlds"))
    file = source / "arm-train.tfrecord-00001-of-00002"
    values = tfrecord.parse_example(tfrecord.read_record(file, 0))
    plain = {name: v if isinstance(v, list) else v.tolist() for name, v in values.items()}
    plain[f"steps/{key}"] = put * len(plain["steps/observation/image"])
    file.write_bytes(other_formats.record(other_formats.example(plain)))
    with pytest.raises(ValueError, match=words):
        imported(source, tmp_path / "v3", fps=10)


def test_a_stopped_import_goes_on_where_it_was_and_ends_the_same(v2, tmp_path, monkeypatch) -> None:
    whole, _ = imported(v2, tmp_path / "whole")
    write, read = import_parts.write_part, []

    def stop_at_3(source: Any, number: int, *more: Any) -> None:
        read.append(number)
        if len(read) == 4:
            raise KeyboardInterrupt
        write(source, number, *more)

    monkeypatch.setattr("vla.data.import_command.write_part", stop_at_3)
    with pytest.raises(Interrupted, match="3 of 5 episodes are saved"):
        imported(v2, tmp_path / "v3")
    assert not (tmp_path / "v3").exists()
    with pytest.raises(ValueError, match="was imported with task '', not 'push'"):
        imported(v2, tmp_path / "v3", task="push")
    imported(v2, tmp_path / "v3")
    assert read == [0, 1, 2, 3, 3, 4]
    assert content(tmp_path / "v3") == content(whole.path)
    assert not (tmp_path / "v3.parts").exists()
    assert imported(v2, tmp_path / "v3")[1] == [f"{tmp_path / 'v3'}: was complete already"]


def test_a_killed_import_leaves_nothing_half_written(v2, tmp_path) -> None:
    many = Path(shutil.copytree(v2, tmp_path / "v2"))
    out = tmp_path / "v3"
    command = [sys.executable, "-m", "vla.cli", "data", "import", str(many), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not list(tmp_path.glob("v3.parts/episode-*")) and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if out.exists():  # the kill came too late: all of it is there
        assert open_dataset(out).num_episodes == 5
    assert imported(many, out)[0].num_episodes == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v2", "v3"]


def test_a_version_3_and_a_source_that_changed_are_refused(v2, fake_dataset, tmp_path) -> None:
    with pytest.raises(ValueError, match="is a LeRobotDataset v3 already; use it as it is"):
        imported(fake_dataset, tmp_path / "v3")
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    imported(source, tmp_path / "v3")
    (source / "README").write_text("new")
    with pytest.raises(ValueError, match="from a source that has changed since"):
        imported(source, tmp_path / "v3")
