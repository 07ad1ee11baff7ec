"""What a user of `vla reward-model` can get wrong: one sentence, an exit code, nothing written."""

import json

import pytest

from tests.commands.lines import only_sentence
from training.reward_model.config import RewardModelConfig
from vla import cli
from vla.contracts import config as configs

TRAIN = "reward-model train --out {new}"
WRONG_WORDS = {
    "no out": ("reward-model train", "--out"),
    "flag": (TRAIN + " --step 3", "--step"),
    "steps": (TRAIN + " --steps 0", "steps: got 0, expected at least 1"),
    "task": (TRAIN + " --tasks.train fly", "fly"),
    "task twice": (TRAIN + " --tasks.train push --tasks.validation push", "none twice"),
    "sizes": (
        TRAIN + " --sizes.episodes-per-task reach",
        "expected a task and a number, reach:1500",
    ),
    "batch": (
        TRAIN + " --algo.sampler.batch-episodes 1",
        "batch_episodes: got 1, expected at least 2",
    ),
    "reward_model": (TRAIN + " --reward-model.type pairwize", "pairwize"),
    "reward model that learns nothing": (
        TRAIN + " --reward-model.type time",
        "expected 'pairwise'",
    ),
    "a model": (TRAIN + " --reward-model.type vlm", "tuned with `vla reward-model tune`"),
    "algorithm": (TRAIN + " --algo.type bc", "got 'bc', expected 'reward_model'"),
    "corrections nowhere": (TRAIN + " --corrections {new}x", "does not exist"),
    "no run": ("reward-model eval {new}", "no config.json", "vla reward-model train --out"),
    "no runs": ("reward-model eval", "no run: give the folders"),
    "run twice": ("reward-model eval {run} {run}", "one is given twice"),
    "split": ("reward-model eval {run} --splits layouts", "expected some of layout, camera"),
    "rounds": (
        "reward-model eval {run} --bootstrap-samples 1",
        "bootstrap_samples: got 1, expected at least 2",
    ),
    "a run without a reward model": ("reward-model eval {run}", "no reward model there"),
    "calibrate nowhere": ("reward-model calibrate {new}", "no config.json"),
    "tune without a model": ("reward-model tune --dataset {run} --out {new}", "no meta/info.json"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of a reward model that has not saved anything yet."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(configs.to_json(RewardModelConfig())))
    return folder


@pytest.mark.parametrize(("line", "said"), [(w[0], w[1:]) for w in WRONG_WORDS.values()],
                         ids=list(WRONG_WORDS))  # fmt: skip
def test_it_is_told_in_one_sentence_and_nothing_is_written(line, said, run, tmp_path, capsys):
    new = tmp_path / "new"
    assert cli.main(line.format(run=run, new=new).split()) == 1
    sentence = only_sentence(capsys.readouterr().err)
    for part in said:
        assert part in sentence
    assert not new.exists()
