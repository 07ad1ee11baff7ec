"""Whole runs of a reward model: recorded, trained, stopped, chosen, laid beside the controls."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from rich.console import Console

from reward_models.core import checkpoint
from reward_models.models import pairwise
from training.algos import reward_model as algo
from training.commands import calibrate_reward_model, eval_reward_model
from training.commands import train_reward_model as reward_model_train
from training.core import loop
from training.core.config import EvalConfig
from training.reward_model.batches import SamplerConfig
from training.reward_model.config import RewardModelConfig
from training.reward_model.datasets import Sizes, Tasks
from vla.backbones import tiny

QUIET = Console(quiet=True)


def config(**changes) -> RewardModelConfig:
    """A run of 6 updates on four episodes."""
    small = pairwise.Config(backbone=tiny.Config(image_px=32), memory_width=8, width=16, bins=5)
    run = RewardModelConfig(
        reward_model=small,
        algo=algo.Config(
            sampler=SamplerConfig(
                batch_episodes=3, memory_frames=2, anchor_frames=2, pair_frames=1, pairs=4
            ),
            goal_pretrain_fraction=0.34, goal_pretrain_batch=4,
        ),
        tasks=Tasks(train=("reach",), validation=("drawer",), test=("push",),
                    composition=("reach:blue",)),
        sizes=Sizes(train=8, validation=4, test=6, episodes_per_task=()),
        eval=EvalConfig(every=3, episodes=4, final_episodes=4, keep_best=True),
        steps=6, threads=1, log_every=1, save_every=2,
    )  # fmt: skip
    return replace(run, **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reward_model") / "data"


@pytest.fixture(scope="module")
def run(data) -> Path:
    reward_model_train.train(config(), data.parent / "run", data, QUIET)
    return data.parent / "run"


def weights(run: Path) -> dict:
    return safetensors.torch.load_file(run / "checkpoint" / "model.safetensors")


def test_a_run_leaves_a_reward_model_that_knows_where_it_comes_from(run):
    told = checkpoint.describe(checkpoint.find(run))
    assert told.provenance["data"] == ["train: reach", "validation: reach, drawer"]
    assert told.calibration.confidence != RewardModelConfig().scorer  # fitted, not the default
    assert checkpoint.load(run).reward_model.cameras == ("front", "wrist")


def test_the_first_third_of_the_updates_only_teaches_where_the_work_leads(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "grad_norm" in line]
    assert ["value_loss" in line for line in updates] == [False] * 2 + [True] * 4
    assert all("goal_loss" in line for line in updates)


def test_the_best_weights_on_validation_are_kept_and_found_first(run):
    score = json.loads((run / "best" / "score.json").read_text())
    final = json.loads((run / "evaluation.json").read_text())
    assert score["rate"] >= final["rate"]
    assert score["step"] in (3, 6)
    assert checkpoint.find(run) == (run / "best").resolve()


def test_a_run_in_two_parts_ends_with_the_same_weights(run, data, tmp_path, monkeypatch):
    update = algo.RewardModelTraining.update

    def stopping(self, batch, optimizer, generator):
        if optimizer.count == 3 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        return update(self, batch, optimizer, generator)

    monkeypatch.setattr(algo.RewardModelTraining, "update", stopping)
    with pytest.raises(KeyboardInterrupt):
        reward_model_train.train(config(), tmp_path / "run", data, QUIET)
    reward_model_train.train(config(), tmp_path / "run", data, QUIET)
    again = weights(tmp_path / "run")
    assert all(np.array_equal(value, again[name]) for name, value in weights(run).items())


def test_a_reward_model_is_calibrated_anew_in_place(run, data, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    folder = checkpoint.find(copy)
    told = json.loads((folder / "reward_model.json").read_text())
    fitted = told["calibration"]
    told["calibration"] = {**fitted, "done": [9.0, 9.0]}
    (folder / "reward_model.json").write_text(json.dumps(told))
    calibrate_reward_model.recalibrate(copy, data)
    again = json.loads((folder / "reward_model.json").read_text())
    assert again["calibration"]["done"] == pytest.approx(fitted["done"])
    assert json.loads((folder / "score.json").read_text())
    assert np.array_equal(
        safetensors.torch.load_file(folder / "model.safetensors")["value.bias"],
        safetensors.torch.load_file(run / "best" / "model.safetensors")["value.bias"],
    )


def test_held_out_compositions_are_never_learned(data, run):
    found = reward_model_train.material(config(), data)
    told = [f"{t} {i}" for t, i in zip(found.train.task, found.train.instruction, strict=True)]
    assert told
    assert not any(text.startswith("reach") and "blue" in text for text in told)


def test_the_table_has_every_split_beside_the_controls(run, data, tmp_path):
    args = eval_reward_model.Args(
        runs=(run,), dataset=data, out=tmp_path, splits=("layout", "task"), bootstrap_samples=2,
        threads=1,
    )  # fmt: skip
    found = eval_reward_model.evaluate(args, QUIET)
    own = found["layout"]
    assert set(own) == {
        "reward_model", "language-blind", "done only", "t/T", "constant", "pixel distance",
        "image-blind",
    }  # fmt: skip
    assert own["t/T"]["VOC"].value == pytest.approx(1.0)
    assert own["reward_model"]["mirror error"].value < 1e-6
    assert "with a reference" in found["task"]
    assert "pixel distance" not in found["task"]  # it has no goal picture of an unknown task
    assert "image-blind" not in found["task"]  # nor joint angles that mean success in it
    assert json.loads((tmp_path / "reward_model_eval.json").read_text())["layout"]["reward_model"]


def test_policies_are_not_trained_by_the_reward_models_algorithm(arm_dataset):
    from tests.training.tiny_run import tiny_config

    with pytest.raises(ValueError, match="use `vla reward-model train`"):
        loop.run(tiny_config(algo=algo.Config()), arm_dataset, Path("never"), QUIET)


def test_runs_of_different_configurations_are_not_averaged(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    told = json.loads((run / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**told, "steps": 7}))
    with pytest.raises(ValueError, match="different configurations"):
        eval_reward_model.evaluate(eval_reward_model.Args(runs=(run, other)), QUIET)
