"""What a user of `vla data import` can get wrong: one sentence, an exit code, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from tests.vla import foreign_sets
from vla import cli


@pytest.fixture(scope="module")
def sources(fake_dataset, tmp_path_factory) -> Path:
    """A data set of each format."""
    place = tmp_path_factory.mktemp("sources")
    foreign_sets.lerobot_v2(fake_dataset, place / "v2")
    foreign_sets.robomimic(fake_dataset, place / "demo.hdf5")
    foreign_sets.rlds(fake_dataset, place / "rlds")
    return place


def leave(place: Path) -> None:
    """Damage nothing."""


def edit_hdf5(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        with h5py.File(place / "demo.hdf5", "a") as file:
            change(file)

    return damage


def drop_column(place: Path) -> None:
    info = json.loads((place / "v2/meta/info.json").read_text())
    del info["features"]["observation.state"]
    (place / "v2/meta/info.json").write_text(json.dumps(info))


def cut(name: str) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        file = place / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def lose(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


CASES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "RLDS without a rate": (leave, "rlds", "RLDS says no rate; give it with --fps"),
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
    "robomimic, cut": (cut("demo.hdf5"), "demo.hdf5 --task x", "cannot be read"),
    "version 2, state": (leave, "v2 --state x", "--state is for robomimic and RLDS"),
    "version 2, rate": (leave, "v2 --fps 30", "has 10 frames/s, expected a whole rate"),
    "version 2, no state": (drop_column, "v2", "has no column 'observation.state'"),
    "version 2, no episodes": (lose("v2/meta/episodes.jsonl"), "v2", "episodes.jsonl: is missing"),
    "version 2, tasks cut": (cut("v2/meta/tasks.jsonl"), "v2", "task_index 1 is not in meta/t"),
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
