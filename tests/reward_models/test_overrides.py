"""Corrections survive kills and a second reviewer, and what is no correction is refused."""

import json
import threading
from pathlib import Path

import pytest

from reward_models.core import overrides
from reward_models.core.overrides import Override

TIME = "2026-11-21T08:00:00+00:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text('{"total_episodes": 5}')
    return tmp_path


def trend(frame: int, value: int, author: str = "ann") -> Override:
    return Override(
        episode=1, frame=frame, kind="trend", value=value, author=author, time=TIME
    )  # fmt: skip


def success(value: bool) -> Override:
    return Override(episode=1, frame=None, kind="success", value=value, author="ann", time=TIME)


def test_what_is_appended_is_read_again_as_the_documented_list(folder: Path):
    assert overrides.read(folder) == []
    overrides.append(folder, trend(3, -1))
    overrides.append(folder, success(True))
    assert overrides.read(folder) == [trend(3, -1), success(True)]
    assert json.loads((folder / "meta/overrides.json").read_text()) == [
        {"episode": 1, "frame": 3, "kind": "trend", "value": -1, "author": "ann", "time": TIME},
        {"episode": 1, "frame": None, "kind": "success", "value": True, "author": "ann",
         "time": TIME},
    ]  # fmt: skip


def test_undo_takes_back_the_newest_of_its_own_author(folder: Path):
    for one in (trend(1, 1), trend(2, 0), trend(3, 0, author="bob")):
        overrides.append(folder, one)
    assert overrides.undo(folder, "ann") == trend(2, 0)
    assert overrides.undo(folder, "eve") is None
    assert overrides.read(folder) == [trend(1, 1), trend(3, 0, author="bob")]


def test_of_corrections_of_the_same_thing_the_last_stands():
    said = [trend(3, -1), success(False), trend(2, 0), trend(3, 1), success(True)]
    assert overrides.latest(said) == [success(True), trend(2, 0), trend(3, 1)]


def test_two_reviewers_at_once_lose_nothing(folder: Path):
    def work(author: str) -> None:
        for frame in range(10):
            overrides.append(folder, trend(frame, 1, author))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = overrides.read(folder)
    assert sorted((o.author, o.frame) for o in found) == [
        (name, k) for name in ("ann", "bob") for k in range(10)
    ]


def test_a_write_that_fails_leaves_the_corrections_alone(folder: Path, monkeypatch):
    overrides.append(folder, trend(1, 1))

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(overrides.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        overrides.append(folder, trend(2, 1))
    assert overrides.read(folder) == [trend(1, 1)]
    assert sorted(p.name for p in (folder / "meta").iterdir()) == ["info.json", "overrides.json"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"episode": -1}, "'episode' -1, expected a number from 0"),
        ({"episode": True}, "'episode' True, expected a number"),
        ({"kind": "mood"}, "'kind' 'mood', expected one of trend, success"),
        ({"kind": ["trend"]}, "'kind' .*, expected one of trend, success"),
        ({"frame": None}, "'frame' None, expected a number from 0 for a trend"),
        ({"value": 2}, "'value' 2, expected -1, 0 or 1"),
        ({"value": True}, "'value' True, expected -1, 0 or 1"),
        ({"kind": "success"}, "'frame' 3, expected null"),
        ({"kind": "success", "frame": None}, "'value' 1, expected true or false"),
        ({"author": ""}, "'author' '', expected a name"),
        ({"time": "noon"}, "'time' 'noon', expected a time as ISO 8601"),
        ({"episode": 5}, "corrects episode 5, but the data set has 5 episodes"),
    ],
)
def test_what_is_no_correction_is_named(folder: Path, change, sentence):
    good = {"episode": 1, "frame": 3, "kind": "trend", "value": 1, "author": "ann", "time": TIME}
    (folder / "meta/overrides.json").write_text(json.dumps([{**good, **change}]))
    with pytest.raises(ValueError, match=sentence):
        overrides.read(folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("[{", "damaged, not JSON"), ("{}", "expected a JSON list"), ("[1]", "entry 0 is 1")],
)
def test_a_damaged_file_is_named_and_not_overwritten(folder: Path, text, sentence):
    (folder / "meta/overrides.json").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        overrides.append(folder, trend(1, 1))
    assert (folder / "meta/overrides.json").read_text() == text
