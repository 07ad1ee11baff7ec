"""A data set that was labelled in part, in format 1, is read, and labelled to its end."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reward_models.core import overrides
from reward_models.label import score as scoring
from reward_models.label.command import label
from reward_models.label.plan import prepare
from reward_models.label.settings import LabelArgs
from reward_models.label_report import read as reading
from tests.migration.recorded import FORMAT_1, assert_same, read

LABELS = FORMAT_1 / "labels"
ARGS: dict[str, Any] = {
    "source": Path("data"), "reward_model": "reward_model", "out": Path("labelled"),
    "agreement": True, "reward": "delta", "gamma": 0.97, "done_threshold": 0.45,
    "smooth": True, "memory_mb": 1, "overrides": Path("overrides.json"),
}  # fmt: skip
"""How it was labelled; relative, as where that was done."""


def figures(folder: Path) -> dict[str, np.ndarray]:
    """Return every figure of every labelled episode, by its place among them."""
    return {
        f"{episode.index}_{i:02d}": np.asarray(part)
        for episode in reading.read(folder).episodes
        for i, part in enumerate(vars(episode).values())
        if isinstance(part, (np.ndarray, float, bool, int))
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder that holds the set, what it was labelled from and by, and work in it."""
    shutil.copytree(LABELS, tmp_path, dirs_exist_ok=True)
    shutil.copytree(FORMAT_1 / "data", tmp_path / "data")
    shutil.copytree(FORMAT_1 / "reward_models" / "pairwise", tmp_path / "reward_model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scoring, "GROUP_FRAMES", 1)  # as there: every episode is scored by itself
    return tmp_path


def assert_labelled(folder: Path, episodes: int) -> None:
    """Assert that so many episodes have the labels that were recorded."""
    expected = {k: v for k, v in read(LABELS / "labelled.npz").items() if int(k[0]) < episodes}
    got = figures(folder)
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert_same(value, expected[name])


def test_labels_are_read_as_they_were_written():
    assert_labelled(LABELS / "labelled", 3)


def test_corrections_are_read_as_they_were_written():
    stored = json.loads((LABELS / "overrides.json").read_text())
    read_again = overrides.read(LABELS / "labelled")
    assert [list(vars(one).values()) for one in read_again] == [list(s.values()) for s in stored]


def test_the_same_command_finds_its_work_done(place):
    told = label(prepare(LabelArgs(**ARGS, episodes="0:3")))
    assert "is labelled already, 3 of 4 episodes" in told


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the raw delta as reward
def test_labelling_goes_on_and_scores_only_what_is_missing(place, monkeypatch):
    scored, true_score = [], scoring.score_group

    def score(job, episodes, images):
        scored.extend(episodes)
        return true_score(job, episodes, images)

    monkeypatch.setattr(scoring, "score_group", score)
    label(prepare(LabelArgs(**ARGS)))
    assert scored == [3]
    assert not (place / "labelled.parts").exists()
    assert_labelled(place / "labelled", 4)


def test_labels_of_other_settings_are_still_not_mixed_in(place):
    with pytest.raises(ValueError, match=r"was labelled with gamma 0.97, not 0.5"):
        label(prepare(LabelArgs(**{**ARGS, "gamma": 0.5})))
