"""What a user of `vla label` can get wrong: one sentence, an exit code, nothing lost."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.reward_models import synthetic_dataset
from tests.commands.lines import content
from vla import cli

LABEL = "label {data} --reward-model time --out {new}"
WRONG_WORDS = {
    "no source": ("label --reward-model time --out {new}", "missing from vla label: SOURCE"),
    "no reward model": ("label {data} --out {new}", "--reward-model"),
    "no out": ("label {data} --reward-model time", "--out"),
    "flag": (LABEL + " --camera front", "--camera"),
    "nowhere": ("label {new} --reward-model time --out {new}2", "does not exist; expected the"),
    "a run": ("label {run} --reward-model time --out {new}", "has no meta/info.json"),
    "reward_model": (
        "label {data} --reward-model tine --out {new}", "tine: no reward model there",
        "time, oracle",
    ),
    "reward model is a policy": (
        "label {data} --reward-model {run} --out {new}", "no reward model there",
    ),
    "episodes beyond": (LABEL + " --episodes 0:99", "got '0:99', expected episodes from 0 to 5"),
    "episodes backwards": (LABEL + " --episodes 4:2", "got '4:2', expected episodes from 0 to 5"),
    "episodes in words": (LABEL + " --episodes all", "got 'all', expected numbers and ranges"),
    "episodes negative": (LABEL + " --episodes=-1", "got '-1', expected numbers and ranges"),
    "shard 0": (LABEL + " --shard 0/2", "got '0/2', expected i/n with i from 1 to n"),
    "shard beyond": (LABEL + " --shard 3/2", "got '3/2', expected i/n"),
    "shard in words": (LABEL + " --shard first", "got 'first', expected i/n"),
    "gamma": (LABEL + " --gamma 1.5", "gamma: got 1.5, expected at most 1"),
    "gamma nan": (LABEL + " --gamma nan", "gamma: got nan, expected at least 0"),
    "threshold": (LABEL + " --done-threshold=-0.1", "done_threshold: got -0.1, expected at least"),
    "memory": (LABEL + " --memory-mb 0", "memory_mb: got 0, expected at least 1"),
    "threads": (LABEL + " --threads 0", "threads: got 0, expected at least 1"),
    "reward": (LABEL + " --reward dense", "invalid choice 'dense'"),
    "example": (LABEL + " --example 6", "example: got 6, expected an episode from 0 to 5"),
    "progress of none": (LABEL + " --example-progress progress", "names a column of no --example"),
    "progress unknown": (
        LABEL + " --example 0 --example-progress progres", "has no column 'progres'", "success",
    ),
    "camera": (LABEL + " --cameras front", "got 1 (front), expected 0", "it has none"),
    "camera of a reward model": (
        "label {data} --reward-model {reward_model} --out {new} --cameras front,top",
        "no camera 'top'", "it has front, wrist",
    ),
    "cameras of a reward model": (
        "label {data} --reward-model {reward_model} --out {new} --cameras front",
        "got 1 (front), expected 2",
    ),
    "corrections": (LABEL + " --overrides {run}/x.json", "no such file or folder"),
    "corrections damaged": (LABEL + " --overrides {data}/README", "not JSON"),
    "into itself": ("label {data} --reward-model time --out {data}/new", "lies within the source"),
    "onto itself": ("label {data} --reward-model time --out {data}", "lies within the source"),
    "over a run": ("label {data} --reward-model time --out {run}", "holds no labelled data set"),
    "in a file": ("label {data} --reward-model time --out {run}/config.json/x", "not a directory"),
    "no such place": ("label {data} --reward-model time --out /proc/x", "no such file or folder"),
}  # fmt: skip


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory) -> Path:
    """A reward model with fresh weights."""
    return synthetic_dataset.make_reward_model(tmp_path_factory.mktemp("reward_model") / "small")


@pytest.fixture(scope="module")
def noted(data, tmp_path_factory) -> Path:
    """The recorded data set with a file that is no JSON."""
    copy = Path(shutil.copytree(data, tmp_path_factory.mktemp("noted") / "data"))
    (copy / "README").write_text("mine")
    return copy


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words_are_answered_and_change_nothing(
    case, noted, run, reward_model, tmp_path, refuse
) -> None:
    line, *words = WRONG_WORDS[case]
    before = content(noted), content(run), content(reward_model)
    refuse(
        line.format(new=tmp_path / "new", data=noted, run=run, reward_model=reward_model), *words
    )
    assert (content(noted), content(run), content(reward_model)) == before
    assert list(tmp_path.iterdir()) == [], "a refused command left something behind"


def test_labels_are_not_labelled_again(data, tmp_path, refuse) -> None:
    line = f"label {data} --reward-model oracle --out {tmp_path / 'one'}"
    assert cli.main(line.split()) == 0
    refuse(
        f"label {tmp_path / 'one'} --reward-model time --out {tmp_path / 'two'}",
        "holds labels already", "expected a data set without",
    )  # fmt: skip


def test_a_reward_model_that_lacks_what_it_needs_says_so(data, tmp_path, refuse) -> None:
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    info = json.loads((copy / "meta/info.json").read_text())
    del info["features"]["progress"]
    (copy / "meta/info.json").write_text(json.dumps(info))
    refuse(
        f"label {copy} --reward-model oracle --out {tmp_path / 'new'}",
        "reward model 'oracle' needs the simulator's progress and success",
    )
    assert not (tmp_path / "new").exists()


DAMAGED = {
    "part cut": ("episode-*.parquet", "damaged", "delete it and run again"),
    "settings cut": ("labelling.json", "labelling.json: damaged"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_parts_are_named(case, data, reward_model, tmp_path, refuse) -> None:
    pattern, *words = DAMAGED[case]
    line = f"label {data} --reward-model {reward_model} --out {tmp_path / 'new'} --memory-mb 1"
    assert cli.main(f"{line} --shard 1/2".split()) == 0
    file = next((tmp_path / "new.parts").glob(pattern))
    file.write_bytes(file.read_bytes()[:40])
    refuse(line, *words)
    assert not (tmp_path / "new").exists()
