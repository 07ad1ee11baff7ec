"""Checkpoints and exported policies of format 1 load, and decide as they did when written."""

import json

import numpy as np
import pytest

from deploy.runtime import artefact
from tests.migration.recorded import (
    FORMAT_1,
    assert_same,
    changed,
    copied,
    decide,
    leaves,
    lost,
    read,
    stored_weights,
    weights,
)
from vla import checkpoint
from vla.checkpoint import read_json
from vla.contracts import config as configs
from vla.contracts import renames
from vla.runtime import policy_loader

CHECKPOINTS = ("bank", "prefix", "tuned", "pretrained")
EXPORTED = ("bank", "prefix")
PREFIX = {"bank": 2, "prefix": 3}
"""Longest prefix that a policy was trained with; none if it is not listed."""


def assert_decides(policy, saved, prefix: int, atol: float = 1e-6) -> None:
    """Assert that every decision, and the state before and after it, is the recorded one."""
    for name, count in {"": 0, "with_prefix_": prefix}.items():
        if name and not count:
            continue
        actions, states = decide(policy, saved, count)
        assert_same(np.stack(actions), saved[f"{name}actions"], atol)
        for i, state in enumerate(zip(*states, strict=True)):
            assert_same(np.stack(state), saved[f"{name}state_{i}"], atol)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_of_a_checkpoint_are_the_stored_ones_to_the_bit(name):
    folder = FORMAT_1 / "checkpoints" / name
    policy, _ = checkpoint.load(folder)
    assert weights(policy.state_dict()) == stored_weights(folder / "model.safetensors")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_decides_as_it_did(name):
    policy = policy_loader.open_policy(FORMAT_1 / "checkpoints" / name, threads=1).policy
    saved = read(FORMAT_1 / "checkpoints" / f"{name}.npz")
    assert_decides(policy, saved, PREFIX.get(name, 0))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_nothing_that_a_checkpoint_says_of_itself_is_lost(name):
    folder = FORMAT_1 / "checkpoints" / name
    stored = read_json(folder / "policy.json")
    policy, origin = checkpoint.load(folder)
    parts = {
        "policy": policy.config, "robot": policy.robot, "statistics": policy.statistics,
        "provenance": origin,
    }  # fmt: skip
    for part, loaded in parts.items():
        assert list(leaves(stored[part]))
        assert lost(stored[part], configs.to_json(loaded)) == []
        assert changed(stored[part], configs.to_json(loaded)) == []


@pytest.mark.parametrize("name", renames.NOISE_ACTOR)
def test_a_checkpoint_that_says_it_has_no_noise_actor_loads_and_is_written_without(name, tmp_path):
    path = copied(tmp_path, "checkpoints/bank") / "bank" / "policy.json"
    stored = read_json(path)
    stored["policy"][name] = stored["policy"].pop("steering")
    path.write_text(json.dumps(stored))
    policy, origin = checkpoint.load(path.parent)
    checkpoint.save(policy, origin, tmp_path / "new", policy.state_dict())
    assert name not in read_json(tmp_path / "new" / "policy.json")["policy"]


@pytest.mark.parametrize("name", renames.NOISE_ACTOR)
def test_a_checkpoint_with_a_noise_actor_is_refused(name, tmp_path):
    path = copied(tmp_path, "checkpoints/steered") / "steered" / "policy.json"
    stored = read_json(path)
    stored["policy"][name] = stored["policy"].pop("steering")
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="noise actor") as refused:
        checkpoint.load(path.parent)
    assert str(refused.value) == (
        f"{path}: policy: got one with a noise actor (width 12), expected one without: "
        f"{renames.DSRL_REMOVED}"
    )


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_policy_decides_as_it_did(name):
    policy = policy_loader.open_policy(FORMAT_1 / "exported" / name, threads=1).policy
    saved = read(FORMAT_1 / "exported" / f"{name}.npz")
    assert_decides(policy, saved, PREFIX[name])


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_policy_decides_as_its_checkpoint(name):
    """The two are read by different code, and neither may drift from the other."""
    ours, theirs = (
        read(FORMAT_1 / kind / f"{name}.npz")["noise"] for kind in ("checkpoints", "exported")
    )
    assert np.array_equal(ours, theirs)
    saved = read(FORMAT_1 / "exported" / f"{name}.npz")
    policy = policy_loader.open_policy(FORMAT_1 / "checkpoints" / name, threads=1).policy
    actions, _ = decide(policy, saved)
    np.testing.assert_allclose(np.stack(actions), saved["actions"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", EXPORTED)
def test_nothing_that_a_manifest_says_is_lost(name):
    folder = FORMAT_1 / "exported" / name
    stored, loaded = read_json(folder / "manifest.json"), artefact.read(folder).manifest
    assert (stored.pop("format"), loaded.format) == (2, artefact.FORMAT)
    assert lost(stored, configs.to_json(loaded)) == []
    assert changed(stored, configs.to_json(loaded)) == []
    assert artefact.files(loaded).keys() <= {path.name for path in folder.iterdir()}
