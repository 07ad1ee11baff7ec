"""Reward models of format 1, trained and exported, judge as they did when written."""

import json

import numpy as np
import pytest

from deploy.loader import open_reward_model
from deploy.reward_model import artefact
from deploy.runtime import artefact as artefacts
from reward_models.core import checkpoint
from tests.migration.recorded import (
    FORMAT_1,
    assert_same,
    changed,
    frames,
    judge,
    lost,
    read,
    stored_weights,
    weights,
)
from vla.contracts import config as configs
from vla.contracts.types import Frames

FOLDER, EXPORTED = FORMAT_1 / "reward_models", FORMAT_1 / "exported" / "reward_model"
NAMES = ("pairwise", "time", "oracle")


def assert_judges(reward_model, saved) -> None:
    """Assert that every figure of every moment is the recorded one."""
    for i, part in enumerate(judge(reward_model, saved)):
        assert_same(part, saved[f"progress_{i}"])


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_a_reward_model_are_the_stored_ones_to_the_bit(name):
    scorer = checkpoint.load(FOLDER / name)
    stored = stored_weights(FOLDER / name / "model.safetensors")
    assert weights(scorer.reward_model.state_dict()) == stored


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_model_judges_as_it_did(name):
    assert_judges(checkpoint.load(FOLDER / name), read(FOLDER / f"{name}.npz"))


def test_a_stream_of_moments_is_judged_as_the_whole_was():
    saved, scorer = read(FOLDER / "pairwise.npz"), checkpoint.load(FOLDER / "pairwise")
    first = np.flatnonzero(saved["row"] == 0)
    state, parts = scorer.start(1), []
    for i in first:
        now = Frames(**{name: value[i : i + 1] for name, value in vars(frames(saved)).items()})
        progress, state = scorer.step(state, now, tuple(saved["task"].tolist()[:1]))
        parts.append([np.asarray(value) for value in vars(progress).values()])
    for i, part in enumerate(zip(*parts, strict=True)):
        expected = saved[f"progress_{i}"][first]
        np.testing.assert_allclose(np.concatenate(part), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_a_reward_model_says_of_itself_is_lost(name):
    stored = json.loads((FOLDER / name / "critic.json").read_text())
    loaded = configs.to_json(checkpoint.describe(FOLDER / name))
    assert lost(stored, loaded) == []
    assert changed(stored, loaded) == []


def test_an_exported_reward_model_judges_as_it_did():
    assert_judges(open_reward_model(EXPORTED), read(EXPORTED.with_suffix(".npz")))


def test_an_exported_reward_model_still_belongs_to_the_one_it_was_exported_from():
    identity = checkpoint.identity(FOLDER / "pairwise")
    artefact.read(EXPORTED).check_origin(identity, FOLDER / "pairwise")
    stored = json.loads((EXPORTED / "manifest.json").read_text())
    stored["format"] = artefacts.FORMAT
    assert lost(stored, configs.to_json(artefact.read(EXPORTED).manifest)) == []
