"""Runs of format 1 that were stopped half way go on, and end with the weights that they had."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from rich.console import Console

from reward_models.core import checkpoint as reward_model_checkpoint
from tests.migration.recorded import (
    FORMAT_1,
    assert_same,
    changed,
    experience,
    leaves,
    lost,
    stored_weights,
    weights,
)
from training.commands import train_reward_model as reward_model_train
from training.core import loop
from training.core.config import DistillConfig, Teacher, TrainConfig
from training.core.metrics import read_metrics
from training.reward_model import datasets
from training.reward_model.config import RewardModelConfig
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience import episode_store
from training.rl.processes import incremental_store
from vla import checkpoint
from vla.checkpoint import read_json
from vla.contracts import config as configs
from vla.contracts import renames

UNFINISHED = FORMAT_1 / "unfinished"
ONLINE_RL = ("filtered_bc", "dppo", "ogpo")
KINDS = {
    "bc": TrainConfig, "distill": DistillConfig, "reward_model_run": RewardModelConfig,
    **dict.fromkeys(ONLINE_RL, OnlineRLConfig),
}  # fmt: skip
"""Class of the configuration of each run."""
CHANGED = ("dppo", "ogpo")
"""They value the time limit otherwise since."""


def data_of(name: str, config: Any) -> Any:
    """Return what a run works on; relative, as where it began."""
    if name == "bc":
        return Path("data")
    if name == "reward_model_run":
        return reward_model_train.material(config, Path("nowhere"))
    if name == "distill":
        return Teacher(Path("start"), Path("data"))
    return Start(
        policy=Path("start"), dataset=Path("data"), reward_model=Path("reward_model"),
        experience=Path(name) / "experience",
    )  # fmt: skip


def read_config(name: str):
    """Return the configuration of a run as its class reads it."""
    return configs.from_json(KINDS[name], read_json(UNFINISHED / name / "config.json"))


def load_weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights that a run has come to."""
    if run.name == "reward_model_run":
        return reward_model_checkpoint.load(run).reward_model.state_dict()
    return checkpoint.load(run)[0].state_dict()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder that holds copies of all that the runs read, and work in it."""
    shutil.copytree(UNFINISHED, tmp_path, dirs_exist_ok=True)
    shutil.copytree(FORMAT_1 / "data", tmp_path / "data")
    shutil.copytree(FORMAT_1 / "reward_models" / "pairwise", tmp_path / "reward_model")
    monkeypatch.chdir(tmp_path)
    # One data set stands for all that a reward model learns from: nothing is recorded.
    monkeypatch.setattr(datasets, "record", lambda split, _: [Path("data") for _ in split.tasks])
    return tmp_path


@pytest.mark.parametrize("name", [name for name in KINDS if name not in CHANGED])
def test_a_run_goes_on_and_ends_where_it_would_have(name, place):
    config = read_config(name)
    before = read_json(place / name / "checkpoint" / "trainer.json")["step"]
    rows = read_metrics(place / name)[:before]
    assert before < config.steps
    loop.run(config, data_of(name, config), Path(name), Console(quiet=True))
    assert read_json(place / name / "checkpoint" / "trainer.json")["step"] == config.steps
    assert [row["step"] for row in read_metrics(place / name)] == list(range(1, config.steps + 1))
    assert read_metrics(place / name)[:before] == rows
    ends = safetensors.torch.load_file(UNFINISHED / f"{name}-end.safetensors")
    for got, expected in zip(_ordered(load_weights(place / name)), _ordered(ends), strict=True):
        assert_same(got, expected, atol=1e-3)  # an optimizer widens differences in a last bit


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_of_what_has_changed_is_refused(name, place):
    config = read_config(name)
    with pytest.raises(
        ValueError, match=f"{name} holds a run with another configuration .*version"
    ):
        loop.run(config, data_of(name, config), Path(name), Console(quiet=True))


def test_a_run_of_dsrl_does_not_go_on_as_another(place):
    path = place / "old" / "config.json"
    path.parent.mkdir()
    shutil.copy(FORMAT_1 / "configs" / "rl-steer.json", path)
    config = read_config("filtered_bc")
    with pytest.raises(ValueError, match="algo: got 'steer', expected one of") as refused:
        loop.run(config, data_of("filtered_bc", config), path.parent, Console(quiet=True))
    assert str(refused.value).endswith(renames.DSRL_REMOVED)


def _ordered(tensors):
    """Return tensors in an order that names do not decide: by shape, then by their sums."""
    return sorted((v.numpy() for v in tensors.values()), key=lambda v: (v.shape, float(v.sum())))


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_an_unfinished_run_are_the_stored_ones_to_the_bit(name):
    stored = stored_weights(UNFINISHED / name / "checkpoint" / "model.safetensors")
    assert weights(load_weights(UNFINISHED / name)) == stored


@pytest.mark.parametrize("name", ONLINE_RL)
def test_experience_is_read_with_equal_arrays(name):
    recorded = json.loads((UNFINISHED / f"{name}-experience.json").read_text())
    assert len(recorded) == 4
    assert experience(UNFINISHED / name / "experience") == recorded


def test_scores_of_experience_are_read(place):
    folder = place / "filtered_bc" / "experience"
    for name in episode_store.iterations(folder):
        episodes = episode_store.read_iteration(folder, name)
        scores = incremental_store.read_scores(folder, name, episodes)
        assert [len(score.reward.reward) for score in scores] == [len(e) for e in episodes]


@pytest.mark.parametrize("name", ONLINE_RL)
def test_a_later_run_learns_from_the_experience_of_format_1(name, place):
    config = read_config("filtered_bc")
    also = Start(
        policy=Path("start"), dataset=Path("data"), reward_model=Path("reward_model"),
        experience=Path("new"), prior_runs=(Path(name) / "experience",),
    )  # fmt: skip
    learner = config.algo.start(config, also)
    assert len(learner.runner.episodes) == 4
    assert len(learner.runner.rewards) == 4


@pytest.mark.parametrize("name", KINDS)
def test_no_value_of_the_configuration_of_a_run_is_lost(name):
    stored = read_json(UNFINISHED / name / "config.json")
    loaded = configs.to_json(read_config(name))
    assert len(list(leaves(stored))) > 20
    assert lost(stored, loaded) == []
    assert changed(stored, loaded) == []
