"""What a user of `vla data import` can get wrong: one sentence, an exit code, nothing written."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.hardening import other_formats
from vla import cli

CAMERA = "observation.images.front"


@pytest.fixture(scope="module")
def sources(fake_dataset, tmp_path_factory) -> Path:
    """A data set of each format."""
    place = tmp_path_factory.mktemp("sources")
    other_formats.lerobot_v2(fake_dataset, place / "v2")
    other_formats.robomimic(fake_dataset, place / "demo.hdf5")
    other_formats.rlds(fake_dataset, place / "rlds")
    return place


def leave(place: Path) -> None:
    """Damage nothing."""


def edit_hdf5(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        with h5py.File(place / "demo.hdf5", "a") as file:
            change(file)

    return damage


def break_chunk(name: str) -> Callable[[Path], None]:
    """Write a column of demo_0 packed, and damage what is packed."""

    def damage(place: Path) -> None:
        with h5py.File(place / "demo.hdf5", "a") as file:
            values = np.asarray(file["data/demo_0"].pop(name))
            packed = file["data/demo_0"].create_dataset(
                name, data=values, chunks=values.shape, compression="gzip"
            )
            chunk = packed.id.get_chunk_info(0)
        with (place / "demo.hdf5").open("r+b") as raw:
            raw.seek(chunk.byte_offset)
            raw.write(b"x" * chunk.size)

    return damage


def picture_group(file: h5py.File) -> None:
    del file["data/demo_1/obs/agentview_image"]
    file.create_group("data/demo_1/obs/agentview_image")


def number_for_demo(file: h5py.File) -> None:
    del file["data/demo_1"]
    file["data/demo_1"] = 3


SECRET = b"TOP-SECRET: of this machine"


def replaced(name: str, make: Callable[[h5py.Group, str, Path], object]) -> Callable[[Path], None]:
    """Make something else of an object of demo_0; other files of this machine lie beside it."""

    def damage(place: Path) -> None:
        (place / "secret.txt").write_bytes(SECRET)
        shutil.copy(place / "demo.hdf5", place / "other.h5x")
        with h5py.File(place / "demo.hdf5", "a") as file:
            group = file["data/demo_0"]
            if name in group:
                del group[name]
            make(group, name, place)

    return damage


def stored_outside(group: h5py.Group, name: str, place: Path) -> None:
    steps = len(group["actions"])
    outside = [(str(place / "secret.txt"), 0, h5py.h5f.UNLIMITED)]
    group.create_dataset(name, shape=(steps,), dtype="u1", external=outside)


def linked_outside(group: h5py.Group, name: str, place: Path) -> None:
    group[name] = h5py.ExternalLink(str(place / "other.h5x"), f"/data/demo_0/{name}")


def linked(group: h5py.Group, name: str, place: Path) -> None:
    group[name] = h5py.SoftLink(f"/data/demo_1/{name}")


def linked_to_itself(group: h5py.Group, name: str, place: Path) -> None:
    group[name] = h5py.SoftLink(f"/data/demo_0/{name}")


def virtual(group: h5py.Group, name: str, place: Path) -> None:
    with h5py.File(place / "other.h5x") as other:
        source = h5py.VirtualSource(other[f"data/demo_0/{name}"])
    layout = h5py.VirtualLayout(shape=source.shape, dtype=source.dtype)
    layout[:] = source
    group.create_virtual_dataset(name, layout)


def endless(rows: int, *shape: int, dtype: str) -> Callable[[h5py.Group, str, Path], object]:
    """Return what declares rows of which nothing is stored."""
    return lambda group, name, _: group.create_dataset(
        name, shape=(rows, *shape), dtype=dtype, chunks=(64, *shape)
    )


def zeros(group: h5py.Group, name: str, place: Path) -> None:
    """Store 2 GiB of zeros, 4 MiB once packed: less than a thousand times what is stored."""
    rows, packed = 2**20, zlib.compress(bytes(4 * 8 * 2**20), level=1)
    packed += bytes(max(0, 65536 - len(packed)))  # what follows the packed bytes is not read
    data = group.create_dataset(
        name, shape=(64 * rows, 8), dtype="f4", chunks=(rows, 8), compression="gzip"
    )
    for number in range(64):
        data.id.write_direct_chunk((number * rows, 0), packed)


def drop_column(place: Path) -> None:
    info = json.loads((place / "v2/meta/info.json").read_text())
    del info["features"]["observation.state"]
    (place / "v2/meta/info.json").write_text(json.dumps(info))


def edit_info(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        file = place / "v2/meta/info.json"
        info = json.loads(file.read_text())
        change(info)
        file.write_text(json.dumps(info))

    return damage


def renamed(key: str) -> Callable[[Path], None]:
    """Rename a camera of version 2."""
    return edit_info(lambda info: info["features"].update({key: info["features"].pop(CAMERA)}))


def told(**more: Any) -> Callable[[Path], None]:
    return edit_info(lambda info: info.update(more))


def line_without(name: str, key: str) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        lines = [json.loads(t) for t in (place / name).read_text().splitlines()]
        del lines[1][key]
        (place / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def rename_rlds(place: Path) -> None:
    file = place / "rlds/features.json"
    file.write_text(file.read_text().replace('"wrist"', '"..\\\\wrist"'))


def cut(name: str) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        file = place / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def lose(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


CASES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "RLDS without a rate": (leave, "rlds", "RLDS defines no rate; give it with --fps"),
    "RLDS, no such split": (leave, "rlds --fps 5 --split test", "no split 'test'; name one with"),
    "RLDS, no such state": (
        leave, "rlds --fps 5 --state observation/joints", "no column of numbers 'observation/joi",
    ),
    "RLDS, a picture for a state": (
        leave, "rlds --fps 5 --state observation/image", "for the state; it has action, reward",
    ),
    "RLDS, a file missing": (
        lose("rlds/arm-train.tfrecord-00000-of-00002"), "rlds --fps 5", "file 0 of 2 of split",
    ),
    "RLDS, description cut": (cut("rlds/features.json"), "rlds --fps 5", "describes no steps of"),
    "RLDS, file cut": (cut("rlds/arm-train.tfrecord-00001-of-00002"), "rlds --fps 5", "truncated"),
    "robomimic without a task": (leave, "demo.hdf5", "says no instruction; give one with --task"),
    "robomimic, no such mask": (leave, "demo.hdf5 --task x --split valid", "no mask 'valid' for -"),
    "robomimic, no such state": (leave, "demo.hdf5 --task x --state eef", "numbers 'eef' under ob"),
    "robomimic, no such action": (leave, "demo.hdf5 --task x --action a", "has no numbers 'a'"),
    "robomimic, no rate": (
        edit_hdf5(lambda f: f["data"].attrs.pop("env_args")), "demo.hdf5 --task x", "give --fps",
    ),
    "robomimic, no data": (edit_hdf5(lambda f: f.pop("data")), "demo.hdf5", "has no group `data`"),
    "robomimic, a column short": (
        edit_hdf5(lambda f: f["data/demo_2"].pop("rewards")), "demo.hdf5 --task x", "is missing",
    ),
    "robomimic, actions torn": (
        break_chunk("actions"), "demo.hdf5 --task x", "demo_0: 'actions' cannot be read",
    ),
    "robomimic, rewards torn": (
        break_chunk("rewards"), "demo.hdf5 --task x", "demo_0: 'rewards' cannot be read",
    ),
    "robomimic, pictures torn": (
        break_chunk("obs/agentview_image"), "demo.hdf5 --task x", "agentview_image cannot be read",
    ),
    "robomimic, pictures a group": (
        edit_hdf5(picture_group), "demo.hdf5 --task x", "no images data/demo_1/obs/agentview_im",
    ),
    "robomimic, a demonstration that is none": (
        edit_hdf5(number_for_demo), "demo.hdf5 --task x", "demo_1: is no demonstration",
    ),
    "robomimic, rewards stored in another file": (
        replaced("rewards", stored_outside), "demo.hdf5 --task x", "is stored in another file",
    ),
    "robomimic, pictures of another file": (
        replaced("obs/agentview_image", linked_outside), "demo.hdf5 --task x", "is a link; copy",
    ),
    "robomimic, actions of another file": (
        replaced("actions", linked_outside), "demo.hdf5 --task x", "'actions' is a link; copy",
    ),
    "robomimic, a demonstration of another file": (
        edit_hdf5(
            lambda f: f["data"].update(demo_9=h5py.ExternalLink("other.h5x", "/data/demo_0"))
        ),
        "demo.hdf5 --task x", "'data/demo_9' is a link",
    ),
    "robomimic, a soft link": (
        replaced("actions", linked), "demo.hdf5 --task x", "'actions' is a link",
    ),
    "robomimic, a link to itself": (
        replaced("obs/robot0_eef_pos", linked_to_itself), "demo.hdf5 --task x", "is a link",
    ),
    "robomimic, virtual actions": (
        replaced("actions", virtual), "demo.hdf5 --task x", "is stored in another file",
    ),
    "robomimic, endless actions": (
        replaced("actions", endless(2**40, 7, dtype="f4")), "demo.hdf5 --task x",
        "declares 28,672 GiB and stores 0.000",
    ),
    "robomimic, endless pictures": (
        replaced("obs/agentview_image", endless(10**9, 32, 32, 3, dtype="u1")),
        "demo.hdf5 --task x", "GiB and stores 0.000",
    ),
    "robomimic, more pictures than steps": (
        replaced("obs/agentview_image", endless(10**4, 32, 32, 3, dtype="u1")),
        "demo.hdf5 --task x", "has 10000 images for",
    ),
    "robomimic, zeros": (
        replaced("actions", zeros), "demo.hdf5 --task x", "2.0 GiB of numbers, expected at most 1",
    ),
    "robomimic, endless rate": (
        edit_hdf5(
            lambda f: f["data"].attrs.update(env_args='{"env_kwargs": {"control_freq": Infinity}}')
        ),
        "demo.hdf5 --task x", "give --fps",
    ),
    "robomimic, brackets": (
        edit_hdf5(lambda f: f["data"].attrs.update(env_args="[" * 9000)), "demo.hdf5 --task x",
        "give --fps",
    ),
    "robomimic, cut": (cut("demo.hdf5"), "demo.hdf5 --task x", "cannot be read"),
    "version 2, state": (leave, "v2 --state x", "--state is for robomimic and RLDS"),
    "version 2, rate": (leave, "v2 --fps 30", "has 10 frames/s, expected a whole rate"),
    "version 2, no state": (drop_column, "v2", "has no column 'observation.state'"),
    "version 2, no episodes": (lose("v2/meta/episodes.jsonl"), "v2", "episodes.jsonl: is missing"),
    "version 2, tasks cut": (cut("v2/meta/tasks.jsonl"), "v2", "task_index 1 is not in meta/t"),
    "version 2, a camera that leaves": (renamed("../../../x"), "v2", "feature name '../../../x'"),
    "version 2, a camera with a path": (renamed("/x"), "v2", "the feature name '/x'"),
    "version 2, a camera with NUL": (renamed("a\0"), "v2", "the feature name 'a\\x00'"),
    "version 2, a feature that is a list": (
        edit_info(lambda info: info["features"].update(action=[2])), "v2", "'action' is [2], expe",
    ),
    "version 2, a feature without shape": (
        edit_info(lambda info: info["features"]["action"].pop("shape")), "v2", "'action' is {",
    ),
    "version 2, a table elsewhere": (
        told(data_path="../{episode_index}.parquet"), "v2", "expected a name inside the data set",
    ),
    "version 2, an absolute table": (told(data_path="/etc/passwd"), "v2", "is '/etc/passwd', expe"),
    "version 2, a pattern of its own": (told(data_path="{0}.parquet"), "v2", "is '{0}.parquet', e"),
    "version 2, a pattern that digs": (
        told(data_path="{episode_index.real}"), "v2", "is '{episode_index.real}', expected",
    ),
    "version 2, a pattern of a name that is not": (
        told(video_path="{camera}.mp4"), "v2", "episode_chunk, episode_index, video_key",
    ),
    "version 2, no chunk": (told(chunks_size=0), "v2", "'chunks_size' is 0, expected at least 1"),
    "version 2, endless rate": (told(fps=float("inf")), "v2", "has inf frames/s, expected a whole"),
    "version 2, episode without number": (
        line_without("v2/meta/episodes.jsonl", "episode_index"), "v2",
        "line 2 has episode_index None; copy",
    ),
    "version 2, task without text": (
        line_without("v2/meta/tasks.jsonl", "task"), "v2", "tasks.jsonl: line 2 has task None",
    ),
    "RLDS, a camera that leaves": (rename_rlds, "rlds --fps 5", "observation.images..."),
    "robomimic, a camera that leaves": (
        edit_hdf5(lambda f: f.move("data/demo_0/obs/agentview_image", "data/demo_0/obs/..\\x")),
        "demo.hdf5 --task x", "observation.images...",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_source_that_does_not_fit_is_named_and_nothing_is_written(
    case, sources, tmp_path, refuse
) -> None:
    damage, line, words = CASES[case]
    copy = Path(shutil.copytree(sources, tmp_path / "copy"))
    damage(copy)
    refuse(f"data import {copy}/{line} --out {tmp_path / 'new'}", words)
    assert not (tmp_path / "new").exists()


def test_what_was_forgotten_is_given_with_the_next_command(sources, tmp_path, refuse) -> None:
    refuse(f"data import {sources}/demo.hdf5 --out {tmp_path / 'new'}", "give one with --task TEXT")
    assert list(tmp_path.iterdir()) == []
    line = f"data import {sources}/demo.hdf5 --out {tmp_path / 'new'} --task push"
    assert cli.main(line.split()) == 0
