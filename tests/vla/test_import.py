"""Data sets of other formats hold the same numbers and pictures once imported."""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.hardening import other_formats
from benchmarks.hardening.other_formats import B_FRAMES, FLAT, decoded, encode, frames_of, v2_video
from tests.commands.lines import content
from vla import cli
from vla.data import remux
from vla.data.import_command import ImportConfig, import_dataset
from vla.data.reader import open_dataset, read_columns

FRONT = "observation.images.front"


def imported(source: Path, out: Path, **more: Any) -> tuple[Any, list[str]]:
    return import_dataset(ImportConfig(source=source, out=out, **more))


def stock(path: Path) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("local/imported", root=path, video_backend="pyav")


def same_numbers(new: Any, old: Path, episodes: list[int] | None = None) -> None:
    """Check lengths, instructions, states and actions, to the bit."""
    before = open_dataset(old)
    chosen = range(before.num_episodes) if episodes is None else episodes
    assert new.lengths.tolist() == [before.lengths[e] for e in chosen]
    assert list(new.tasks) == [before.tasks[e] for e in chosen]
    got, had = read_columns(new), read_columns(before)
    rows = np.concatenate([np.arange(before.offsets[e], before.offsets[e + 1]) for e in chosen])
    np.testing.assert_array_equal(got.state, had.state[rows])
    np.testing.assert_array_equal(got.action, had.action[rows])


@pytest.mark.parametrize("options", [FLAT, B_FRAMES])
def test_version_2_keeps_every_number_and_its_videos_to_the_bit(
    fake_dataset, options, tmp_path
) -> None:
    source = other_formats.lerobot_v2(fake_dataset, tmp_path / "v2", options)
    before = content(source)
    info, told = imported(source, tmp_path / "v3")
    same_numbers(info, fake_dataset)
    assert told == ["videos: 10 joined without encoding, 0 encoded again"]
    for e in range(5):
        for view, camera in enumerate(info.cameras):
            there = decoded(v2_video(source, camera.key, e))
            np.testing.assert_array_equal(frames_of(info, e)[:, view], there)
    columns = read_columns(info)
    np.testing.assert_array_equal(
        columns.scalars["progress"], read_columns(open_dataset(fake_dataset)).scalars["progress"]
    )
    assert content(source) == before
    # 5 episodes of one camera share a file.
    assert len(list((tmp_path / "v3/videos" / FRONT).glob("*/*.mp4"))) == 1
    table = pq.read_table(tmp_path / "v3/data/chunk-000/file-000.parquet")
    assert set(table["behaviour"].to_pylist()) == {"expert"}


def test_stock_lerobot_reads_the_same_frame_of_every_import(
    v2, hdf5, rlds, fake_dataset, tmp_path
) -> None:
    before = open_dataset(fake_dataset)
    states = read_columns(before).state
    for source, more in ((v2, {}), (hdf5, {"task": "push", "state": STATE}), (rlds, {"fps": 10})):
        info, _ = imported(source, tmp_path / source.name, **more)
        data = stock(info.path)
        assert len(data) == before.num_frames
        for row in (0, 25, before.num_frames - 1):
            frame = data[row]
            np.testing.assert_array_equal(frame["observation.state"], states[row])
            e = int(np.searchsorted(before.offsets, row, side="right")) - 1
            assert frame["episode_index"] == e
            picture = frame[info.cameras[0].key].numpy().transpose(1, 2, 0) * 255
            expected = frames_of(info, e)[row - before.offsets[e], 0]
            assert np.abs(picture - expected).max() < 3  # another conversion to RGB
        assert set(data.meta.stats["action"]) >= {"min", "max", "mean", "std", "q01", "count"}
        np.testing.assert_allclose(
            data.meta.stats["observation.state"]["mean"], states.mean(0), atol=1e-6
        )


STATE = ("robot0_joint_pos", "robot0_gripper_qpos")


def test_robomimic_keeps_every_number_and_names_what_it_drops(hdf5, fake_dataset, tmp_path) -> None:
    info, told = imported(hdf5, tmp_path / "v3", task="push 0")
    before = open_dataset(fake_dataset)
    # By default all low-dimensional columns but the objects', in order of name.
    assert info.state_names == ("robot0_gripper_qpos", "robot0_joint_pos")
    assert info.fps == 20  # control_freq of env_args
    assert [c.name for c in info.cameras] == ["agentview", "robot0_eye_in_hand"]
    got, had = read_columns(info), read_columns(before)
    np.testing.assert_array_equal(got.state, had.state[:, ::-1])
    np.testing.assert_array_equal(got.action, had.action)
    np.testing.assert_array_equal(got.scalars["next.reward"], had.scalars["success"])
    assert told[0] == "dropped: obs/agentview_depth, obs/object"
    for e in range(5):  # our own encoder moves a pixel by a few steps of 255 at most
        difference = np.abs(frames_of(info, e).astype(int) - frames_of(before, e))
        assert difference.mean() < 2


def test_a_mask_chooses_demonstrations_in_order_of_their_number(
    hdf5, fake_dataset, tmp_path
) -> None:
    info, _ = imported(hdf5, tmp_path / "v3", task="push 0", split="train", state=STATE)
    before = open_dataset(fake_dataset)
    assert info.lengths.tolist() == [before.lengths[0], before.lengths[3]]
    state = read_columns(before).state
    rows = np.r_[before.offsets[0] : before.offsets[1], before.offsets[3] : before.offsets[4]]
    np.testing.assert_array_equal(read_columns(info).state, state[rows])
    origin = json.loads((info.path / "meta/recording.json").read_text())["episodes"]
    assert origin == ["demo.hdf5, demo_0", "demo.hdf5, demo_3"]


def test_an_instruction_inside_a_file_is_found(hdf5, tmp_path) -> None:
    file = Path(shutil.copy(hdf5, tmp_path / "libero.hdf5"))
    with h5py.File(file, "a") as root:
        said = {"language_instruction": "put the bowl on the plate"}
        root["data"].attrs["problem_info"] = json.dumps(said)
        root["data/demo_1"].attrs["ep_meta"] = json.dumps({"lang": "open the drawer"})
    info, _ = imported(file, tmp_path / "v3")
    assert info.tasks[0] == "put the bowl on the plate"
    assert info.tasks[1] == "open the drawer"


def test_rlds_keeps_every_number_and_the_order_of_its_files(rlds, fake_dataset, tmp_path) -> None:
    info, told = imported(rlds.parent, tmp_path / "v3", fps=10)
    same_numbers(info, fake_dataset)
    assert info.state_names == ("state[0]", "state[1]")
    assert told[:2] == ["left out: split val (--split)", "dropped: discount, observation/words"]
    done = read_columns(info).scalars["next.done"]
    assert np.flatnonzero(done).tolist() == (info.offsets[1:] - 1).tolist()
    before = open_dataset(fake_dataset)
    for e in range(5):
        difference = np.abs(frames_of(info, e).astype(int) - frames_of(before, e))
        assert difference.mean() < 2
    assert imported(rlds, tmp_path / "val", fps=10, split="val")[0].num_episodes == 1


def test_a_video_off_the_grid_is_encoded_anew_and_named(v2, fake_dataset, tmp_path) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    video = v2_video(source, FRONT, 2)
    length = int(open_dataset(fake_dataset).lengths[2])
    pictures = decoded(video)
    # Twice as many pictures a second: every second one is shown at a time of the table.
    encode(video, pictures.repeat(2, axis=0), 20, FLAT)
    info, told = imported(source, tmp_path / "v3")
    assert told[0] == "videos: 9 joined without encoding, 1 encoded again"
    assert told[1] == f"encoded again: {video}: has frames that are not 10 a second"
    new = frames_of(info, 2)[:, 0]
    assert len(new) == length
    assert np.abs(new.astype(int) - pictures).mean() < 3
    assert len(list((tmp_path / "v3/videos" / FRONT).glob("*/*.mp4"))) == 3  # before, it, after


@pytest.mark.parametrize("anew", [0, 2])
def test_figures_of_pictures_that_only_some_episodes_have_are_in_no_row(
    anew, v2, tmp_path, monkeypatch
) -> None:
    """Version 2 says no quantiles of pictures; of what is encoded anew they are known."""
    monkeypatch.setattr("vla.data.writer.ROWS_AT_ONCE", 2)
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    video = v2_video(source, FRONT, anew)
    encode(video, decoded(video).repeat(2, axis=0), 20, FLAT)
    info, told = imported(source, tmp_path / "v3")
    assert "1 encoded again" in told[0]
    table = pq.read_table(info.path / "meta/episodes/chunk-000/file-000.parquet")
    assert table.num_rows == 5
    said = {n.rsplit("/", 1)[1] for n in table.column_names if n.startswith(f"stats/{FRONT}/")}
    assert said == {"min", "max", "mean", "std", "count"}
    assert not any(table[name].null_count for name in table.column_names)
    assert np.shape(table[f"stats/{FRONT}/mean"].to_pylist()) == (5, 3, 1, 1)


def test_figures_of_version_2_may_be_whole_numbers_and_must_be_of_every_colour(
    v2, tmp_path
) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    file = source / "meta/episodes_stats.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    lines[0]["stats"][FRONT]["mean"] = [[[0]], [[1]], [[0]]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    info, _ = imported(source, tmp_path / "v3")
    table = pq.read_table(info.path / "meta/episodes/chunk-000/file-000.parquet")
    mean = np.array(table[f"stats/{FRONT}/mean"].to_pylist())[:, :, 0, 0]
    assert mean[0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(mean[1], np.ravel(lines[1]["stats"][FRONT]["mean"]))
    lines[3]["stats"][FRONT]["std"] = [[[0.5]]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"episode 3 .* 'std' of 'observation.images.front'"):
        imported(source, tmp_path / "other")


def test_frames_after_the_end_that_are_off_the_grid_do_not_shift_the_next_episode(
    v2, fake_dataset, tmp_path
) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    video = v2_video(source, FRONT, 2)
    pictures = decoded(video)
    length = len(pictures)
    with av.open(str(video), "w") as container:
        stream = container.add_stream("libx264", 10, options=FLAT)
        stream.pix_fmt, stream.height, stream.width = "yuv420p", *pictures.shape[1:3]
        stream.codec_context.time_base = Fraction(1, 1000)
        # Five more frames within the time of one.
        times = [*range(0, 100 * length, 100), *(100 * length - 80 + 20 * i for i in range(5))]
        for time_ms, pixels in zip(times, [*pictures, *pictures[:5]], strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    info, told = imported(source, tmp_path / "v3")
    assert told[1] == f"encoded again: {video}: has frames that are not 10 a second"
    np.testing.assert_array_equal(frames_of(info, 3)[:, 0], decoded(v2_video(source, FRONT, 3)))


@pytest.mark.parametrize("names", [["channels", "height", "width"], None])
def test_a_camera_that_names_its_channels_first_is_written_with_them_last(
    names, v2, tmp_path
) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    described = json.loads((source / "meta/info.json").read_text())
    height, width, _ = described["features"][FRONT]["shape"]
    described["features"][FRONT] |= {"shape": [3, height, width], "names": names}
    (source / "meta/info.json").write_text(json.dumps(described))
    video = v2_video(source, FRONT, 2)
    encode(video, decoded(video).repeat(2, axis=0), 20, FLAT)  # is encoded anew
    info, _ = imported(source, tmp_path / "v3")
    feature = json.loads((info.path / "meta/info.json").read_text())["features"][FRONT]
    assert feature["shape"] == [height, width, 3]
    assert feature["names"] == ["height", "width", "channels"]
    assert (info.cameras[0].height_px, info.cameras[0].width_px) == (height, width)


def packet_bytes(video: Path) -> int:
    with av.open(str(video)) as container:
        return sum(packet.size for packet in container.demux(video=0))


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_videos_of_one_kind_share_a_file_until_it_is_large_enough(codec, tmp_path) -> None:
    """AV1 is what LeRobot records; its decoder is another one than its encoder."""
    options = {"libx264": B_FRAMES, "libsvtav1": {"g": "2", "crf": "30", "preset": "12"}}[codec]
    rng, clips = np.random.default_rng(0), [tmp_path / f"{i}.mp4" for i in range(4)]
    for length, clip in zip((5, 1, 7, 4), clips, strict=True):
        slope = np.linspace(0, 200, 64)[:, None, None].repeat(64, axis=1)
        frames = slope + rng.integers(0, 50, (length, 1, 1, 3))
        encode(clip, frames.astype(np.uint8), 10, options, codec)
    size = sum(packet_bytes(clip) for clip in clips[:3])
    videos = remux.CameraVideos(tmp_path / "out", "cam", 10, file_bytes=size - 1)
    places = [videos.join(clip) for clip in clips]
    videos.close()
    assert places == [(0, 0, 0.0), (0, 0, 0.5), (0, 0, 0.6), (0, 1, 0.0)]  # 5 frames, 1, 7
    for (chunk, file, begin), clip in zip(places, clips, strict=True):
        joined = decoded(tmp_path / f"out/videos/cam/chunk-{chunk:03d}/file-{file:03d}.mp4")
        expected = decoded(clip)
        first = round(begin * 10)
        np.testing.assert_array_equal(joined[first : first + len(expected)], expected)


def test_pictures_inside_the_tables_of_version_2_stay_there(v2, fake_dataset, tmp_path) -> None:
    source = Path(shutil.copytree(v2, tmp_path / "v2"))
    info = json.loads((source / "meta/info.json").read_text())
    info["features"][FRONT]["dtype"] = "image"
    (source / "meta/info.json").write_text(json.dumps(info))
    for e in range(5):
        file = source / f"data/chunk-000/episode_{e:06d}.parquet"
        pictures = [other_formats.png(p) for p in decoded(v2_video(source, FRONT, e))]
        cells = pa.array([{"bytes": p, "path": None} for p in pictures],
                         pa.struct([("bytes", pa.binary()), ("path", pa.string())]))  # fmt: skip
        pq.write_table(pq.read_table(file).append_column(FRONT, cells), file)
    new, told = imported(source, tmp_path / "v3")
    assert told == ["videos: 5 joined without encoding, 0 encoded again"]
    there = decoded(v2_video(source, FRONT, 3))
    np.testing.assert_array_equal(frames_of(new, 3)[:, 0], there)
    row = int(new.offsets[3])
    shown = stock(new.path)[row][FRONT].numpy().transpose(1, 2, 0) * 255
    np.testing.assert_allclose(shown, there[0], atol=0.01)


def test_the_command_prints_what_became_of_it(rlds, tmp_path, capsys) -> None:
    out = tmp_path / "v3"
    assert cli.main(["data", "import", str(rlds), "--out", str(out), "--fps", "10"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("5 episodes, ")
    assert said[-1].endswith(f" frames in {out}")
