"""Configurations of format 1, in which no field has its default, load with every value."""

from pathlib import Path
from typing import Any

import pytest

from reward_models.core.checkpoint import Description
from tests.migration.recorded import FORMAT_1, changed, leaves, lost
from training.core.config import DistillConfig, TrainConfig
from training.reward_model.config import RewardModelConfig
from training.rl.config import OnlineRLConfig
from vla.checkpoint import read_json
from vla.contracts import config as configs
from vla.contracts import migrate

KINDS = {
    "train": TrainConfig, "distill": DistillConfig, "rl": OnlineRLConfig,
    "reward_model-train": RewardModelConfig, "reward_model": Description,
}  # fmt: skip
"""Class of a configuration by how the name of its file begins."""
REMOVED = FORMAT_1 / "configs" / "rl-steer.json"
"""Of an algorithm that was removed."""
FILES = sorted({*(FORMAT_1 / "configs").glob("*.json")} - {REMOVED})
WRITTEN = 30
"""How many there are."""


def load(path: Path) -> tuple[Any, Any]:
    """Return what is stored, without the noise actor of a policy, and the JSON of what is loaded
    from it.
    """
    stored = read_json(path)
    stored.get("policy", {}).pop("steering", None)
    kind = KINDS.get(path.stem) or KINDS[path.stem.partition("-")[0]]
    return stored, configs.to_json(configs.from_json(kind, stored))


def test_every_kind_of_configuration_is_there():
    assert len(FILES) == WRITTEN
    assert {path.stem.partition("-")[0] for path in FILES} == {
        name.partition("-")[0] for name in KINDS
    }


@pytest.mark.parametrize("path", [REMOVED, FORMAT_1 / "configs" / "train-tiny.json"])
def test_a_configuration_of_dsrl_is_refused(path):
    kind = KINDS[path.stem.partition("-")[0]]
    with pytest.raises(migrate.RemovedError, match="^(algo|policy): got .*: DSRL was removed"):
        configs.from_json(kind, read_json(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_value_is_lost_whatever_its_field_is_called(path):
    stored, loaded = load(path)
    assert len(list(leaves(stored))) > 5
    assert lost(stored, loaded) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_field_that_keeps_its_name_keeps_its_value(path):
    stored, loaded = load(path)
    assert changed(stored, loaded) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_written_again_is_read_as_the_same(path):
    _, loaded = load(path)
    kind = KINDS.get(path.stem) or KINDS[path.stem.partition("-")[0]]
    assert configs.to_json(configs.from_json(kind, loaded)) == loaded
