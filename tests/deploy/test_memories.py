"""A memory with a state of its own shape goes wherever a policy goes, by its own file alone."""

import numpy as np
import pytest
import torch

from deploy.commands import export
from deploy.export import graph
from deploy.runtime import artefact as artefacts
from deploy.server.client import RemotePolicy
from deploy.server.request import JPEG, RequestSpec
from deploy.verify.torch_target import CompiledPolicy
from tests.deploy.conftest import made, origin
from tests.deploy.test_deployed import deployed, together
from tests.deploy.test_verify_export import compared
from tests.fakes import fake_policy
from tests.served import given, same, serving
from vla.contracts import registry
from vla.memory import none
from vla.policies import vla


@pytest.mark.parametrize("memory", registry.names("vla.memory"))
def test_a_tensor_of_the_state_has_the_name_of_no_other_port_or_array(memory):
    bare = fake_policy(vla.Config(memory=none.Config()))
    taken = {*RequestSpec(bare, 1).entries, *JPEG, "values"}
    for one in graph.trace(bare, 1).values():
        taken |= {*one.inputs, *one.outputs}
    config = registry.load("vla.memory", memory).Config()
    policy = fake_policy(vla.Config(memory=config))
    names = set(policy.memory.state_shapes())
    new = {artefacts.NEW_STATE.format(name) for name in names}
    assert not (names | new) & taken
    whole = graph.trace(policy, 1)[artefacts.ACT]
    assert (names <= set(whole.inputs), new <= set(whole.outputs)) == (True, True)


def test_parity_passes_it_and_sees_one_that_remembers_something_else(exported):
    policy = made("recurrent")
    found = compared(policy, exported["recurrent"])
    assert max(one.worst for one in found.stages.values()) < 1e-4
    assert found.parted == 0
    with torch.no_grad():
        policy.memory.cell.bias_hh += 0.5
    assert compared(policy, exported["recurrent"]).parted > 0


def test_a_manifest_says_what_the_state_is(exported):
    manifest = artefacts.read(exported["recurrent"]).manifest
    assert (manifest.remembers, manifest.state_shapes) == (True, {"hidden": (17, 24)})
    manifest = artefacts.read(exported["another"]).manifest
    assert (manifest.remembers, manifest.state_shapes) == (False, {})


@pytest.mark.parametrize("name", ["recurrent", "another"])
def test_a_server_decides_with_it_as_the_policy_does(exported, name):
    policy = deployed(artefacts.read(exported[name]))
    with serving(policy) as (address, one), RemotePolicy(address) as remote:
        assert remote.remembers == policy.remembers
        ours, theirs = policy.initial_state(2), remote.initial_state(2)
        assert theirs.tensors.keys() == ours.tensors.keys()
        for k in range(6):
            obs, _, noise = given(policy, 2, time_s=0.8 * (k % 4), seed=k)  # two episodes
            mine, its = policy.act(obs, ours, noise), remote.act(obs, theirs, noise)
            same(mine, its)
            ours, theirs = mine[1], its[1]
        assert one.health()["refused"] == 0


def test_compiled_it_takes_and_gives_the_same_state(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, mode: function)
    policy = made("recurrent")
    for ours, theirs, (mine, other) in together(policy, CompiledPolicy(policy), 1, 3):
        np.testing.assert_array_equal(theirs, ours)
        np.testing.assert_array_equal(other["hidden"], mine["hidden"])


@pytest.mark.parametrize(
    "memory", sorted({*registry.names("vla.memory")} - {"bank", "gru", "none"})
)
def test_every_further_memory_acts_alike_exported(memory, tmp_path):
    small = {
        "hcam": {"chunks": 3, "chunk_decisions": 3, "top_chunks": 2, "hidden_size": 24},
        "transformer": {"max_decisions": 6, "hidden_size": 24},
    }.get(memory, {})
    config = registry.load("vla.memory", memory).Config(**small)
    policy = fake_policy(vla.Config(memory=config))
    export.export(policy, origin(), tmp_path / "out", batch=2)
    other = deployed(artefacts.read(tmp_path / "out"))
    # More decisions than it keeps, and a row that begins anew.
    for ours, theirs, (mine, its) in together(policy, other, 2, 20):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)
        for name, value in its.tensors.items():
            np.testing.assert_allclose(value, mine[name].numpy(), rtol=1e-4, atol=1e-4)
