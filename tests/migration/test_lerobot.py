"""A policy that was packed for LeRobot in format 1 is loaded by LeRobot, and unpacked."""

import pytest

pytest.importorskip("lerobot")

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class

import lerobot_policy_mneme
from lerobot_policy_mneme import convert
from tests.migration.recorded import FORMAT_1, copied, stored_weights, weights
from tests.migration.recorded import read as read_recorded
from tests.migration.test_checkpoints import assert_decides
from vla.runtime import policy_loader

BANK = FORMAT_1 / "checkpoints" / "bank"


@pytest.fixture
def packed(tmp_path):
    """Return the folder: LeRobot's file, and the three of the checkpoint, which lie in both."""
    folder = copied(tmp_path, "lerobot") / "lerobot"
    for file in BANK.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_lerobot_loads_it_with_the_stored_weights(packed):
    assert lerobot_policy_mneme.MnemeConfig is get_policy_class("mneme").config_class
    config = PreTrainedConfig.from_pretrained(packed)
    assert (config.chunk_size, config.n_action_steps, config.history) == (8, 5, 5)
    policy = get_policy_class(config.type).from_pretrained(packed, config=config).policy
    assert weights(policy.state_dict()) == stored_weights(BANK / "model.safetensors")
    saved = read_recorded(BANK.with_suffix(".npz"))
    assert_decides(policy.eval(), saved, 0)


def test_it_is_unpacked_to_a_checkpoint_that_decides_as_it_did(packed, tmp_path):
    assert convert.unpack([str(packed), "--out", str(tmp_path / "run")]) == 0
    policy = policy_loader.open_policy(tmp_path / "run", threads=1).policy
    assert_decides(policy, read_recorded(BANK.with_suffix(".npz")), 2)
