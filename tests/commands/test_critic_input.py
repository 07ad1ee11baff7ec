"""What a user of `vla critic` can get wrong: one sentence, an exit code, nothing written."""

import json

import pytest

from tests.commands.lines import only_sentence
from training.critic.config import CriticConfig
from vla import cli
from vla.contracts import config as configs

TRAIN = "critic train --out {new}"
WRONG_WORDS = {
    "no out": ("critic train", "--out"),
    "flag": (TRAIN + " --step 3", "--step"),
    "steps": (TRAIN + " --steps 0", "steps: got 0, expected at least 1"),
    "task": (TRAIN + " --tasks.train fly", "fly"),
    "task twice": (TRAIN + " --tasks.train push --tasks.validation push", "none twice"),
    "sizes": (TRAIN + " --sizes.instead reach", "expected a task and a number, reach:1500"),
    "batch": (TRAIN + " --algo.drawing.episodes 1", "episodes: got 1, expected at least 2"),
    "critic": (TRAIN + " --critic.type pairwize", "pairwize"),
    "critic that learns nothing": (TRAIN + " --critic.type time", "expected 'pairwise'"),
    "a model": (TRAIN + " --critic.type vlm", "tuned with `vla critic tune`"),
    "algorithm": (TRAIN + " --algo.type bc", "got 'bc', expected 'critic'"),
    "corrections nowhere": (TRAIN + " --corrections {new}x", "does not exist"),
    "no run": ("critic eval {new}", "no config.json", "vla critic train --out"),
    "no runs": ("critic eval", "no run: give the folders"),
    "run twice": ("critic eval {run} {run}", "one is given twice"),
    "split": ("critic eval {run} --splits layouts", "expected some of layout, camera"),
    "rounds": ("critic eval {run} --rounds 1", "rounds: got 1, expected at least 2"),
    "a run without a critic": ("critic eval {run}", "no critic there"),
    "calibrate nowhere": ("critic calibrate {new}", "no config.json"),
    "tune without a model": ("critic tune --data {run} --out {new}", "no meta/info.json"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of a critic that has not saved anything yet."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(configs.to_json(CriticConfig())))
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
