"""Every fault that is planted in a recorded data set is found and named; a clean set has none."""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.hardening.other_formats import decoded, png
from sim.experts.episode import record_episode
from sim.vec_env import load_robot
from tests.commands.lines import content
from vla import cli
from vla.data.decode import decode_image as picture
from vla.data.info import Camera
from vla.data.inspection import images
from vla.data.inspection import numbers as detectors
from vla.data.inspection.command import inspect
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding, named
from vla.data.inspection.numbers import still_runs
from vla.data.reader import open_dataset
from vla.data.video_writer import VideoWriter
from vla.data.writer import write_shard
from vla.utils.interrupted import Interrupted

ROWS = "data/chunk-000/file-000.parquet"
EPISODES = 6
JOINT = 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Six episodes of the arm that puts a cube on a tray."""
    out = tmp_path_factory.mktemp("recorded") / "data"
    made = (record_episode("pick_place", 5, index) for index in range(EPISODES))
    write_shard(out, load_robot("so101"), made, {})
    return out


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def found_in(data: Path, **more: Any) -> list[Finding]:
    """Return what is found, without notes."""
    _, _, findings = inspect(data, data.with_name("page.html"), **more)
    return [f for f in findings if f.severity != NOTE]


def change(data: Path, name: str, how: Callable[[np.ndarray], Any], file: str = ROWS) -> None:
    """Change a column, given as an array, in place."""
    table = pq.read_table(data / file)
    values = np.array(table[name].to_pylist())
    how(values)
    place = table.schema.get_field_index(name)
    kind = table.schema.field(place)
    table = table.set_column(place, kind, pa.array(values.tolist(), kind.type))
    pq.write_table(table, data / file)


def rows_of(data: Path, episode: int) -> slice:
    offsets = open_dataset(data, content=False).offsets
    return slice(int(offsets[episode]), int(offsets[episode + 1]))


def film(data: Path, camera: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change all pictures of a camera, u8 `n h w 3`."""
    file = data / f"videos/observation.images.{camera}/chunk-000/file-000.mp4"
    frames = how(decoded(file))
    file.unlink()
    writer = VideoWriter(file, frames.shape[1:], 10)
    writer.write(frames, len(frames), "film")
    writer.close()


def bomb() -> bytes:
    """Return the beginning of a PNG of 60000 x 60000 pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    checked = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + checked + struct.pack(">I", 9) + b"IDAT"


PICTURES = {
    "bomb": (bomb(), "pixels"),
    "null": (None, "got nothing"),
    "number": (3, "got a value of type int"),
    "nothing": (b"", "got nothing"),
    "noise": (b"abc", "cannot identify"),
    "torn": (png(np.zeros((8, 8, 3), np.uint8))[:44], "truncated|broken|cannot|end of"),
    "another size": (png(np.zeros((9, 8, 3), np.uint8)), "it is 9 x 8, expected 8 x 8"),
}


@pytest.mark.parametrize("what", PICTURES)
def test_a_picture_that_cannot_be_decoded_says_why(what) -> None:
    data, words = PICTURES[what]
    with pytest.raises(ValueError, match=words):
        picture(data, (8, 8))


@pytest.mark.parametrize("what", ["null", "bomb"])
def test_a_cell_of_a_table_that_holds_no_picture_is_a_finding(what, recorded, tmp_path) -> None:
    info = open_dataset(recorded)
    file = tmp_path / "table.parquet"
    good = png(np.zeros((48, 64, 3), np.uint8))
    cells = [{"bytes": good}, {"bytes": bomb()} if what == "bomb" else None]
    pq.write_table(
        pa.table({"episode_index": [0, 0], "frame_index": [0, 1], "cam": pa.array(cells)}), file
    )
    camera = Camera(name="cam", key="cam", height_px=48, width_px=64, video=False)
    job = images.ScanJob(camera=camera, file=file, episodes=np.arange(6), starts=info.offsets[:-1])
    seen = images.scan(info, job, {}, lambda _: None)
    assert seen.rows.tolist() == [0]
    assert f"{file}: the image of frame 1 of episode 0 cannot be decoded" in seen.error


def test_near_duplicates_among_many_are_those_that_all_pairs_give(monkeypatch) -> None:
    monkeypatch.setattr(detectors, "BLOCK", 7)
    rng = np.random.default_rng(0)
    shapes = rng.uniform(0, 1, (300, 64)).astype(np.float32)
    shapes[40] = shapes[200] + 0.015
    shapes[299] = shapes[3] - 0.015
    shapes[7] = shapes[100]
    shapes[7, 63] += 0.03  # apart in one number
    shapes[9], shapes[10] = np.nan, np.inf
    assert detectors._near(shapes, list(range(300))) == [(3, 299), (40, 200)]


def test_a_clean_recording_has_no_finding(recorded, tmp_path) -> None:
    before = content(recorded)
    _, seen, findings = inspect(recorded, tmp_path / "page.html")
    assert [f.kind for f in findings] == ["lag"]  # a note: an arm follows
    assert findings[0].message.startswith("the state follows the action by 1 frame (0.10 s")
    frames = open_dataset(recorded).num_frames
    for camera in ("front", "wrist"):
        rows = np.concatenate([one.rows for one in seen[camera]])
        np.testing.assert_array_equal(rows, np.arange(frames))  # each once, in order
    assert content(recorded) == before


def set_row(episode: int, frame: int, value: Any) -> Callable[[Path, str], None]:
    def plant(data: Path, name: str) -> None:
        row = rows_of(data, episode).start + frame

        def how(values: np.ndarray) -> None:
            values[(row, JOINT) if values.ndim == 2 else row] = value

        change(data, name, how)

    return plant


def spike(data: Path) -> None:
    set_row(2, 7, 25.0)(data, "observation.state")


def freeze_joint(data: Path) -> None:
    rows = rows_of(data, 3)

    def how(values: np.ndarray) -> None:
        values[rows, JOINT] = values[rows.start, JOINT]

    change(data, "observation.state", how)


def freeze_joint_midway(data: Path) -> None:
    rows = slice(rows_of(data, 3).start + 5, rows_of(data, 3).start + 25)

    def how(values: np.ndarray) -> None:
        values[rows, JOINT] = values[rows.start, JOINT]

    change(data, "observation.state", how)


def lose_time(data: Path) -> None:
    rows = rows_of(data, 4)

    def how(values: np.ndarray) -> None:
        values[rows.start + 10 : rows.stop] += 0.3  # three frames were lost

    change(data, "timestamp", how)


def jitter(data: Path) -> None:
    def how(values: np.ndarray) -> None:
        values[:] += np.random.default_rng(0).uniform(0.001, 0.009, len(values))

    change(data, "timestamp", how)


def over_limit(data: Path) -> None:
    spec = load_robot("so101").channels[JOINT]

    def how(values: np.ndarray) -> None:
        values[3:5, JOINT] = spec.high + 0.05 * (spec.high - spec.low)

    change(data, "action", how)


def same_episode(data: Path, noise: float = 0.0) -> None:
    """Make episode 5 as long as episode 1 and the same but for noise, a share of the motion."""
    source, target = rows_of(data, 1), rows_of(data, 5)
    length = min(source.stop - source.start, target.stop - target.start)
    shorten(data, {1: length, 5: length})
    source, target = rows_of(data, 1), rows_of(data, 5)

    def how(values: np.ndarray) -> None:
        drawn = np.random.default_rng(1).normal(0, noise, values[source].shape)
        values[target] = values[source] + drawn * np.ptp(values, axis=0)

    for name in ("observation.state", "action"):
        change(data, name, how)


def shorten(data: Path, lengths: dict[int, int]) -> None:
    """Keep the first frames of episodes, as if the recorder had been stopped."""
    table, places = pq.read_table(data / ROWS), "meta/episodes/chunk-000/file-000.parquet"
    episode, frame = (table[n].to_numpy() for n in ("episode_index", "frame_index"))
    keep = np.array([f < lengths.get(e, 10**9) for e, f in zip(episode, frame, strict=True)])
    table = table.filter(pa.array(keep))
    pq.write_table(table, data / ROWS)
    kept = np.bincount(table["episode_index"].to_numpy())
    change(data, "length", lambda v: v.__setitem__(slice(None), kept), places)
    info = json.loads((data / "meta/info.json").read_text())
    info["total_frames"] = int(kept.sum())
    (data / "meta/info.json").write_text(json.dumps(info))


def one_frame(data: Path) -> None:
    shorten(data, {2: 1})


def no_text(data: Path) -> None:
    table = pq.read_table(data / "meta/tasks.parquet")
    name = next(n for n in table.column_names if n != "task_index")
    texts = table[name].to_pylist()
    place = table.schema.get_field_index(name)
    texts[pq.read_table(data / ROWS)["task_index"][0].as_py()] = " "
    pq.write_table(table.set_column(place, name, pa.array(texts)), data / "meta/tasks.parquet")


def black(data: Path, frames: int) -> None:
    rows = rows_of(data, 2)

    def how(pictures: np.ndarray) -> np.ndarray:
        pictures[rows.start + 2 : rows.start + 2 + frames] = 4
        return pictures

    film(data, "wrist", how)


def hang(data: Path, frames: int) -> None:
    rows = rows_of(data, 4)

    def how(pictures: np.ndarray) -> np.ndarray:
        pictures[rows.start + 5 : rows.start + 5 + frames] = pictures[rows.start + 5]
        return pictures

    film(data, "front", how)


def cut_video(data: Path) -> None:
    film(data, "front", lambda pictures: pictures[: rows_of(data, 4).start + 3])


def truncate_video(data: Path) -> None:
    file = data / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    file.write_bytes(file.read_bytes()[:-200])


def scramble_video(data: Path) -> None:
    file = data / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    data_ = bytearray(file.read_bytes())
    start = data_.index(b"mdat") + 4
    data_[start + 2000 : start + 40000] = bytes(38000)
    file.write_bytes(data_)


def delay(data: Path) -> None:
    """Let states come 6 frames late, as if by another clock."""

    def how(values: np.ndarray) -> None:
        for e in range(EPISODES):
            rows = rows_of(data, e)
            values[rows] = np.concatenate([values[rows][:1].repeat(6, 0), values[rows][:-6]])

    change(data, "observation.state", how)


def late_actions(data: Path) -> None:
    def how(values: np.ndarray) -> None:
        for e in range(EPISODES):
            rows = rows_of(data, e)
            values[rows] = np.concatenate([values[rows][:1].repeat(4, 0), values[rows][:-4]])

    change(data, "action", how)


def copied_actions(data: Path) -> None:
    states = np.array(pq.read_table(data / ROWS)["observation.state"].to_pylist())
    change(data, "action", lambda v: v.__setitem__(slice(None), states))


NAN = float("nan")
FAULTS: dict[str, tuple[Callable[[Path], None], str, str, tuple[int, ...], str]] = {
    "NaN action": (
        lambda d: set_row(1, 4, NAN)(d, "action"), ERROR, "not finite", (1,),
        "action 'shoulder_lift' is no number in 1 frame of episode 1, first in frame 4",
    ),
    "infinite state": (
        lambda d: set_row(0, 3, np.inf)(d, "observation.state"), ERROR, "not finite", (0,),
        "state 'shoulder_lift' is no number",
    ),
    "outlier": (spike, WARNING, "outlier", (2,), "in 1 frame of episode 2, worst in frame 7 of e"),
    "limit": (over_limit, WARNING, "limits", (0,), "passes the limits of so101"),
    "stuck": (freeze_joint, ERROR, "stuck", (3,), "joint 'shoulder_lift' stands still"),
    "stuck midway": (freeze_joint_midway, ERROR, "stuck", (3,), "frames 5 to 24 of episode 3"),
    "gap": (lose_time, ERROR, "time", (4,), "first in frame 10 of episode 4"),
    "jitter": (jitter, WARNING, "time", tuple(range(6)), "by up to 9.0 ms"),
    "same": (same_episode, ERROR, "duplicate", (5,), "episode 5 is episode 1"),
    "nearly same": (
        lambda d: same_episode(d, 0.002), WARNING, "near duplicate", (5,), "5 is like episode 1",
    ),
    "one frame": (one_frame, ERROR, "one frame", (2,), "episode 2 of one frame"),
    "no text": (no_text, ERROR, "no instruction", (), "without an instruction"),
    "black": (lambda d: black(d, 25), ERROR, "black camera", (2,), "'wrist' is black in 25 frames"),
    "blink": (lambda d: black(d, 1), WARNING, "black camera", (2,), "first in frame 2 of"),
    "frozen": (lambda d: hang(d, 20), ERROR, "frozen camera", (4,), "'front' shows the same image"),
    "frozen for long": (lambda d: hang(d, 12), WARNING, "frozen camera", (4,), "in frames 5 to 16"),
    "video short": (cut_video, ERROR, "missing frames", (4, 5), "'front' lacks"),
    "video cut": (truncate_video, ERROR, "missing frames", tuple(range(6)), "is truncated"),
    "video damaged": (scramble_video, ERROR, "missing frames", (), "camera 'wrist' lacks"),
    "slow": (delay, WARNING, "lag", (), "by 7 frames (0.70 s"),
    "actions late": (late_actions, WARNING, "lag", (), "state is 3 frames (0.30 s) ahead"),
    "actions copied": (copied_actions, WARNING, "lag", (), "every action is the state"),
}  # fmt: skip


CONSEQUENCES = {
    "outlier": {"limits"},  # 25 rad is beyond the arm's limits, too
    "video damaged": {"black camera"},  # what FFmpeg puts in the place of lost blocks
}
"""What else is rightly found."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is_and_nothing_else(fault, copy) -> None:
    plant, severity, kind, episodes, words = FAULTS[fault]
    plant(copy)
    found = found_in(copy)
    mine = [f for f in found if f.kind == kind]
    assert [f.severity for f in mine] == [severity], found
    assert words in mine[0].message
    if episodes:
        assert mine[0].episodes == episodes
    assert {f.kind for f in found} - {kind} <= CONSEQUENCES.get(fault, set())


def test_a_number_of_the_reward_that_is_not_finite_is_an_error(copy) -> None:
    change(copy, "progress", lambda values: values.__setitem__(3, np.nan))
    (found,) = found_in(copy)
    assert found.severity == ERROR
    assert "progress" in found.message


def test_limits_of_another_arm_are_those_that_are_asked_for(recorded, tmp_path) -> None:
    numbers, _, _ = inspect(recorded, tmp_path / "page.html", "panda")
    assert numbers.robot is not None
    assert numbers.robot.name == "panda"


def test_episodes_are_named_as_many_as_fit() -> None:
    assert named([3, 3]) == "episode 3"
    assert named(range(8)) == "8 episodes (0, 1, 2, 3, 4, 5, ...)"


def test_still_stretches_are_measured_from_where_they_begin() -> None:
    values = np.array([0.0, 0.05, 0.1, 0.15, 0.2, np.nan, 1.0, 1.0])
    assert still_runs(values, 0.11) == [(0, 3), (3, 5), (5, 6), (6, 8)]


def test_an_interrupted_inspection_goes_on_with_the_files_that_are_left(
    copy, tmp_path, monkeypatch
) -> None:
    from vla.data.inspection import images

    look, looked = images.scan, []

    def stop_at_second(info: Any, job: Any, *more: Any) -> Any:
        looked.append(job.camera.name)
        if len(looked) == 2:
            raise KeyboardInterrupt
        return look(info, job, *more)

    monkeypatch.setattr(images, "scan", stop_at_second)
    with pytest.raises(Interrupted, match="1 of 2 files"):
        inspect(copy, tmp_path / "page.html")
    _, seen, _ = inspect(copy, tmp_path / "page.html")
    assert looked == ["front", "wrist", "wrist"]
    frames = open_dataset(copy).num_frames
    assert [sum(len(s.rows) for s in seen[c]) for c in ("front", "wrist")] == [frames, frames]
    black(copy, 25)  # the file changed: it is looked at again
    assert "black camera" in {f.kind for f in found_in(copy)}


def test_the_command_writes_a_page_without_network_and_ends_by_what_it_found(
    copy, tmp_path, capsys
) -> None:
    page = tmp_path / "page.html"
    line = ["data", "inspect", str(copy), "--out", str(page), "--strict"]
    assert cli.main(line) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<img") == 2 * 4 * 3  # cameras, episodes, first, middle and last
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "pick" in text
    assert not page.with_name("page.html.parts").exists()
    one_frame(copy)
    assert cli.main(line) == 1
    assert "error: episode 2 of one frame" in capsys.readouterr().out
    assert cli.main([*line[:-1], "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["episodes"] == EPISODES
    assert [f["kind"] for f in said["findings"] if f["severity"] == "error"] == ["one frame"]
    assert said["channels"][1]["channel"] == "shoulder_lift"
    assert said["channels"][1]["outside"] == 0.0


def test_pictures_inside_tables_are_looked_at(copy, tmp_path) -> None:
    key = "observation.images.wrist"
    frames = decoded(copy / f"videos/{key}/chunk-000/file-000.mp4")
    frames[3:9] = 0
    cells = pa.array([{"bytes": png(f), "path": None} for f in frames],
                     pa.struct([("bytes", pa.binary()), ("path", pa.string())]))  # fmt: skip
    pq.write_table(pq.read_table(copy / ROWS).append_column(key, cells), copy / ROWS)
    info = json.loads((copy / "meta/info.json").read_text())
    info["features"][key]["dtype"] = "image"
    (copy / "meta/info.json").write_text(json.dumps(info))
    found = found_in(copy)
    assert [(f.kind, f.episodes) for f in found] == [("black camera", (0,))]
    assert "in 6 frames of episode 0, first in frame 3" in found[0].message
