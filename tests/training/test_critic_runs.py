"""Whole runs of a critic: recorded, trained, stopped, chosen, laid beside the controls."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from rich.console import Console

from reward_models import checkpoint
from reward_models.critics import pairwise
from training import loop
from training.algos import critic as algo
from training.config import EvalConfig
from training.critic import calibrate, evaluate
from training.critic import train as critic_train
from training.critic.batches import Drawing
from training.critic.config import CriticConfig
from training.critic.sets import Sizes, Tasks
from vla.backbones import tiny

QUIET = Console(quiet=True)


def config(**changes) -> CriticConfig:
    """A run of 6 updates on four episodes."""
    small = pairwise.Config(backbone=tiny.Config(image_px=32), memory_width=8, width=16, bins=5)
    run = CriticConfig(
        critic=small,
        algo=algo.Config(
            drawing=Drawing(episodes=3, past=2, spots=2, mates=1, pairs=4), aiming=0.34, aimed=4
        ),
        tasks=Tasks(train=("reach",), validation=("drawer",), test=("push",),
                    composition=("reach:blue",)),
        sizes=Sizes(train=8, validation=4, test=6, instead=()),
        eval=EvalConfig(every=3, episodes=4, final_episodes=4, keep_best=True),
        steps=6, threads=1, log_every=1, save_every=2,
    )  # fmt: skip
    return replace(run, **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("critic") / "data"


@pytest.fixture(scope="module")
def run(data) -> Path:
    critic_train.train(config(), data.parent / "run", data, QUIET)
    return data.parent / "run"


def weights(run: Path) -> dict:
    return safetensors.torch.load_file(run / "checkpoint" / "model.safetensors")


def test_a_run_leaves_a_critic_that_knows_where_it_comes_from(run):
    told = checkpoint.describe(checkpoint.find(run))
    assert told.provenance["data"] == ["train: reach", "validation: reach, drawer"]
    assert told.calibration.confidence != CriticConfig().scorer  # fitted, not the default
    assert checkpoint.load(run).critic.cameras == ("front", "wrist")


def test_the_first_third_of_the_updates_only_teaches_where_the_work_leads(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "grad_norm" in line]
    assert ["value" in line for line in updates] == [False] * 2 + [True] * 4
    assert all("goal" in line for line in updates)


def test_the_best_weights_on_validation_are_kept_and_found_first(run):
    score = json.loads((run / "best" / "score.json").read_text())
    final = json.loads((run / "evaluation.json").read_text())
    assert score["rate"] >= final["rate"]
    assert score["step"] in (3, 6)
    assert checkpoint.find(run) == (run / "best").resolve()


def test_a_run_in_two_parts_ends_with_the_same_weights(run, data, tmp_path, monkeypatch):
    update = algo.CriticLearning.update

    def stopping(self, batch, optimiser, generator):
        if optimiser.count == 3 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        return update(self, batch, optimiser, generator)

    monkeypatch.setattr(algo.CriticLearning, "update", stopping)
    with pytest.raises(KeyboardInterrupt):
        critic_train.train(config(), tmp_path / "run", data, QUIET)
    critic_train.train(config(), tmp_path / "run", data, QUIET)
    again = weights(tmp_path / "run")
    assert all(np.array_equal(value, again[name]) for name, value in weights(run).items())


def test_a_critic_is_calibrated_anew_in_place(run, data, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    folder = checkpoint.find(copy)
    told = json.loads((folder / "critic.json").read_text())
    fitted = told["calibration"]
    told["calibration"] = {**fitted, "done": [9.0, 9.0]}
    (folder / "critic.json").write_text(json.dumps(told))
    calibrate.recalibrate(copy, data)
    again = json.loads((folder / "critic.json").read_text())
    assert again["calibration"]["done"] == pytest.approx(fitted["done"])
    assert json.loads((folder / "score.json").read_text())
    assert np.array_equal(
        safetensors.torch.load_file(folder / "model.safetensors")["value.bias"],
        safetensors.torch.load_file(run / "best" / "model.safetensors")["value.bias"],
    )


def test_held_out_compositions_are_never_learned(data, run):
    found = critic_train.material(config(), data)
    told = [f"{t} {i}" for t, i in zip(found.train.task, found.train.instruction, strict=True)]
    assert told
    assert not any(text.startswith("reach") and "blue" in text for text in told)


def test_the_table_has_every_split_beside_the_controls(run, data, tmp_path):
    args = evaluate.Args(
        runs=(run,), data=data, out=tmp_path, splits=("layout", "task"), rounds=2,
        threads=1,
    )  # fmt: skip
    found = evaluate.evaluate(args, QUIET)
    own = found["layout"]
    assert set(own) == {
        "critic", "language-blind", "done only", "t/T", "constant", "pixel distance",
        "image-blind",
    }  # fmt: skip
    assert own["t/T"]["VOC"].value == pytest.approx(1.0)
    assert own["critic"]["mirror error"].value < 1e-6
    assert "with a reference" in found["task"]
    assert "pixel distance" not in found["task"]  # it has no goal picture of an unknown task
    assert "image-blind" not in found["task"]  # nor joint angles that mean success in it
    assert json.loads((tmp_path / "critic_eval.json").read_text())["layout"]["critic"]


def test_policies_are_not_trained_by_the_critics_algorithm(arm_dataset):
    from tests.training.tiny_run import tiny_config

    with pytest.raises(ValueError, match="use `vla critic train`"):
        loop.run(tiny_config(algo=algo.Config()), arm_dataset, Path("never"), QUIET)


def test_runs_of_different_configurations_are_not_averaged(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    told = json.loads((run / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**told, "steps": 7}))
    with pytest.raises(ValueError, match="different configurations"):
        evaluate.evaluate(evaluate.Args(runs=(run, other)), QUIET)
