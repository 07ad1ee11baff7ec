"""Reward models on disk: exact round trips, one sentence for every kind of damage, and known
names.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reward_models.core import checkpoint
from reward_models.core.calibration import Calibration
from reward_models.core.curves import ScorerConfig
from reward_models.core.scorer import Scorer
from reward_models.models import pairwise
from tests.fake_reward_models import frames_of
from tests.fakes import PX, TASKS, liven_
from vla.backbones import tiny
from vla.nn.text import train_tokenizer

CONFIG = pairwise.Config(
    cameras=("front",), backbone=tiny.Config(image_px=PX), memory_width=8, width=16, bins=5
)
SETTINGS = ScorerConfig(stride_s=0.1, lags_s=(0.3, 0.7), abstain_below=0.0)
FITTED = Calibration(done=(-1.5, 0.5), confidence=(1.0, -2.0, -3.0, 0.25))
TRAINED_ON = {"data": ["push"], "updates": 7}


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    tokenizer = train_tokenizer(TASKS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        reward_model = CONFIG.build(tokenizer)
    liven_(reward_model)
    return Scorer(reward_model.eval(), SETTINGS, FITTED)


def save(scorer: Scorer, folder: Path, also: Callable[[Path], None] = lambda folder: None) -> None:
    checkpoint.save(
        scorer, CONFIG, train_tokenizer(TASKS), folder, weights=scorer.reward_model.state_dict(),
        provenance=TRAINED_ON, also=also,
    )  # fmt: skip


@pytest.fixture(scope="module")
def original(scorer: Scorer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    save(scorer, folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(original, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def values(scorer: Scorer) -> np.ndarray:
    return scorer.score(frames_of([[0.1, 0.8, 0.4]], px=PX), TASKS[:1]).value


def test_a_round_trip_is_exact(scorer: Scorer, original: Path) -> None:
    loaded = checkpoint.load(original)
    assert (loaded.config, loaded.calibration) == (SETTINGS, FITTED)
    assert not loaded.reward_model.training
    assert checkpoint.describe(original).reward_model == CONFIG
    assert checkpoint.describe(original).provenance == TRAINED_ON
    np.testing.assert_array_equal(values(loaded), values(scorer))


def test_the_folder_of_the_run_around_it_will_do(original: Path) -> None:
    assert checkpoint.find(original.parent) == checkpoint.find(original)


@pytest.mark.parametrize("name", checkpoint.UNTRAINED)
def test_reward_models_that_learn_nothing_are_known_by_name(name: str) -> None:
    found = checkpoint.load(name)
    assert type(found.reward_model).__module__ == f"reward_models.models.{name}"
    assert checkpoint.identity(name) == name


def test_where_there_is_no_reward_model_it_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no reward model there .*reward_model.json.* time, oracle"
    ):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "reward model lacks model.safetensors"),
        (lambda f: (f / "reward_model.json").write_text("{"), "reward_model.json"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 40), "model.safetensors"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda f: change(f, format=99), "reward model format 99, expected 1"),
        (lambda f: change(f, surprise=1), "surprise"),
        (lambda f: change(f, reward_model={"type": "nobody"}), "unknown reward model 'nobody'"),
        (lambda f: change(f, scorer={"lags_s": []}), "lags_s"),
        (lambda f: change(f, calibration={"done": [0.0]}), "done"),
    ],
)
def test_damage_is_one_sentence(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=said) as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value)


def change(folder: Path, **fields: object) -> None:
    path = folder / "reward_model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    there = json.loads((folder / "reward_model.json").read_text())
    change(folder, reward_model=there["reward_model"] | {"width": 24})
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        checkpoint.load(folder)


def test_saving_again_replaces_the_whole_folder(scorer: Scorer, folder: Path) -> None:
    (folder / "left_over.txt").touch()
    save(scorer, folder, lambda fresh: (fresh / "beside.txt").touch())
    names = {path.name for path in folder.iterdir()}
    assert names == {"reward_model.json", "tokenizer.json", "model.safetensors", "beside.txt"}
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_what_fails_while_saving_leaves_the_old_reward_model_and_nothing_else(
    scorer: Scorer, folder: Path
) -> None:
    before = checkpoint.identity(folder)

    def fail(fresh: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(scorer, folder, fail)
    assert checkpoint.identity(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_identity_follows_what_a_reward_model_says_and_not_where_it_lies(
    scorer: Scorer, original: Path, folder: Path, tmp_path: Path
) -> None:
    assert checkpoint.identity(folder) == checkpoint.identity(original)
    other = Scorer(scorer.reward_model, SETTINGS, replace(FITTED, done=(0.0, 1.0)))
    save(other, tmp_path / "other")
    assert checkpoint.identity(tmp_path / "other") != checkpoint.identity(original)
