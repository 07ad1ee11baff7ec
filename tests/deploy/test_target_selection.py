"""Targets are tried in the user's order, and what was refused is said."""

import json
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from deploy.commands import engines
from deploy.runtime import artefact as artefacts
from deploy.runtime import target_selection
from deploy.runtime.policy import DeployedPolicy
from deploy.runtime.recording import RecordingRunner
from deploy.targets import onnxruntime
from tests.deploy import fake_cuda, fake_tensorrt
from tests.deploy.conftest import made, origin
from tests.fakes import TASKS, fake_noise, fake_observation, fake_policy
from vla import checkpoint
from vla.contracts.protocols import ArmPolicy
from vla.runtime import policy_loader


@pytest.fixture
def run(tmp_path):
    """A checkpoint of the policy that was exported."""
    policy = made("remembers")
    checkpoint.save(policy, origin(), tmp_path / "run", policy.state_dict())
    return tmp_path / "run"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A machine with a GPU and TensorRT, as far as tests have one."""
    cuda = fake_cuda.Runtime()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    library = fake_tensorrt.Library(fake_tensorrt.VERSIONS[0], cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", library)
    monkeypatch.setenv("MNEME_ENGINES", str(tmp_path / "engines"))
    return library


@pytest.fixture
def bare(monkeypatch):
    """A machine without TensorRT."""
    monkeypatch.setitem(sys.modules, "tensorrt", None)


def decides_alike(one, other, decisions=3, atol=1e-4):
    """Let both decide on the same observations, with a memory each."""
    rng = np.random.default_rng(0)
    states = [one.initial_state(1), other.initial_state(1)]
    for k in range(decisions):
        obs, noise = fake_observation(rng, 1, 0.8 * k), fake_noise(rng, one, 1)
        ours, states[0] = one.act(obs, states[0], noise)
        theirs, states[1] = other.act(obs, states[1], noise)
        np.testing.assert_allclose(
            np.asarray(theirs.values), np.asarray(ours.values), rtol=0, atol=atol
        )
        counts = [np.asarray(state["slot_count"]) for state in states]
        np.testing.assert_array_equal(*counts)


def test_the_first_that_decides_runs_it_and_the_others_are_accounted_for(exported, bare):
    found = policy_loader.open_policy(
        exported["remembers"], 1, ("tensorrt", "onnxruntime-cuda", "onnxruntime", "torch")
    )
    assert found.target == "onnxruntime"
    assert found.refused[0].startswith("tensorrt: TensorRT is not installed; on a Jetson")
    assert found.refused[1].startswith("onnxruntime-cuda: providers: got CUDAExecution")
    assert found.refusals() == [f"refused target {one}" for one in found.refused]
    assert all("\n" not in line for line in found.refusals())


def test_where_it_is_installed_the_first_choice_runs_it(exported, installed):
    found = policy_loader.open_policy(exported["remembers"], 1, ("tensorrt", "onnxruntime"))
    assert (found.target, found.refused) == ("tensorrt", ())
    decides_alike(policy_loader.open_policy(exported["remembers"], 1).policy, found.policy)


def test_what_fails_only_when_it_decides_is_refused_too(exported, installed, monkeypatch):
    monkeypatch.setattr(fake_tensorrt._Builder, "build_serialized_network", lambda *_, **__: None)
    found = policy_loader.open_policy(exported["remembers"], 1, ("tensorrt", "onnxruntime"))
    assert found.target == "onnxruntime"
    assert "builds no engine" in found.refused[0]


def test_what_decides_nothing_finite_is_refused(exported, installed, monkeypatch):
    real = fake_tensorrt._Context.array

    def broken(self, name):
        found = real(self, name)
        if name == "latent":
            found[...] = np.nan
        return found

    monkeypatch.setattr(fake_tensorrt._Context, "array", broken)
    found = policy_loader.open_policy(exported["remembers"], 1, ("tensorrt", "onnxruntime"))
    assert "not finite" in found.refused[0]


def test_without_names_it_is_onnx_runtime_alone(exported, run):
    found = policy_loader.open_policy(exported["remembers"], 1)
    assert (found.target, found.refused) == ("onnxruntime", ())
    assert policy_loader.open_policy(run, 1).target == "torch"


def test_none_that_decides_says_why_of_each(exported, bare):
    with pytest.raises(
        ValueError, match=r"none of 2 targets .*; tensorrt: .*; torch: .*--reference-checkpoint"
    ):
        policy_loader.open_policy(exported["remembers"], 1, ("tensorrt", "torch"))
    with pytest.raises(ValueError, match=r": tensorrt: TensorRT is not installed"):
        policy_loader.open_policy(exported["remembers"], 1, ("tensorrt",))


def test_names_are_checked_before_anything_is_opened(exported):
    with pytest.raises(ValueError, match=r"unknown target 'tensort': did you mean tensorrt"):
        policy_loader.open_policy(exported["remembers"], 1, ("onnxruntime", "tensort"))
    with pytest.raises(ValueError, match="got onnxruntime twice"):
        policy_loader.open_policy(exported["remembers"], 1, ("onnxruntime", "onnxruntime"))


def test_torch_runs_the_checkpoint_that_was_exported_and_no_other(exported, run, tmp_path):
    found = policy_loader.open_policy(
        exported["remembers"], 1, ("torch",), reference_checkpoint=run
    )
    assert found.target == "torch"
    decides_alike(policy_loader.open_policy(exported["remembers"], 1).policy, found.policy)
    other, elsewhere = fake_policy(), checkpoint.provenance({"type": "reach"}, TASKS, 8)
    checkpoint.save(other, elsewhere, tmp_path / "other", other.state_dict())
    with pytest.raises(ValueError, match="the checkpoint has 8 on reach"):
        policy_loader.open_policy(
            exported["remembers"], 1, ("torch",), reference_checkpoint=tmp_path / "other"
        )


def test_a_checkpoint_takes_no_target_of_graphs(run):
    with pytest.raises(ValueError, match=r"got targets tensorrt .*takes torch and torch-compile"):
        policy_loader.open_policy(run, 1, ("tensorrt", "torch"))
    with pytest.raises(ValueError, match=r"got --reference-checkpoint .* no exported policy"):
        policy_loader.open_policy(run, 1, reference_checkpoint=run)


def test_an_exported_policy_runs_where_its_target_does(exported):
    with pytest.raises(ValueError, match="runs where its target does; leave --device out"):
        policy_loader.open_policy(exported["remembers"], 1, device="cuda")


def test_compiled_it_decides_as_the_checkpoint_does(run, monkeypatch):
    """All but the compiler, which takes a minute and cannot read what tests check types with."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, mode: asked.append(mode) or function)
    found = policy_loader.open_policy(run, 1, ("torch-compile", "torch"))
    assert (found.target, asked) == ("torch-compile", ["default"])
    assert isinstance(found.policy, ArmPolicy)
    decides_alike(policy_loader.open_policy(run, 1).policy, found.policy)


@pytest.mark.slow
def test_the_real_compiler_changes_no_decision(run):
    code = f"""
from pathlib import Path
from tests.deploy.test_target_selection import decides_alike
from vla import opening
run = Path({str(run)!r})
found = opening.open_(run, 1, ("torch-compile", "torch"))
assert found.target == "torch-compile", found.refused
decides_alike(opening.open_(run, 1).policy, found.policy, decisions=12)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_fails_is_a_sentence(run, monkeypatch):
    def compile_(function, mode):
        def fail(*_):
            raise TorchDynamoException("\nno C++ compiler\nfound\n")

        return fail

    monkeypatch.setattr(torch, "compile", compile_)
    found = policy_loader.open_policy(run, 1, ("torch-compile", "torch"))
    assert found.target == "torch"
    assert found.refused == (
        "torch-compile: PyTorch does not compile it: no C++ compiler; install a C++ compiler, or "
        "take target torch",
    )


def test_a_session_with_bound_inputs_gives_what_one_without_does(exported):
    artefact = artefacts.read(exported["remembers"])
    engine = onnxruntime.Config().open(artefact)
    recorder = RecordingRunner(engine)
    policy = DeployedPolicy(artefact, recorder)
    rng, state, bound = np.random.default_rng(0), policy.initial_state(1), None
    for k, task in enumerate(("press the red button", "press the blue button", "red", "red")):
        obs = fake_observation(rng, 1, 0.8 * k)
        _, state = policy.act(
            type(obs)(**{**vars(obs), "task": (task,)}), state, fake_noise(rng, policy, 1)
        )
        given = recorder.calls["act"][-1][0]
        bound = bound or onnxruntime.BoundSession(
            engine.sessions["act"], artefact.manifest.graphs["act"], "cpu"
        )
        plain, other = engine.run("act", given), bound.run(given)
        for name, value in plain.items():
            np.testing.assert_array_equal(other[name], value)


def test_engines_are_built_timed_and_told(exported, installed, tmp_path, capsys):
    out = tmp_path / "figures" / "engines.json"
    words = [str(exported["remembers"]), "--targets", "tensorrt", "onnxruntime", "--calls", "10",
             "--out", str(out)]  # fmt: skip
    assert engines.main(words) == 0
    said = capsys.readouterr().out
    told = json.loads(out.read_text())
    assert json.loads(said.strip().splitlines()[-1]) == told
    assert told["synchronized"]
    graphs = {engines.DECISION, *artefacts.STAGES, artefacts.ACT}
    for one in told["targets"].values():
        assert set(one["seconds"]) == graphs
        assert all(0 < t["p50"] <= t["p95"] <= t["p99"] for t in one["seconds"].values())
    assert {e["built"] for e in told["targets"]["tensorrt"]["engines"].values()} == {True}
    assert all(e["cuda_graph"] for e in told["targets"]["tensorrt"]["engines"].values())
    assert "5 from the cache" not in said
    assert "tensorrt: largest difference from onnxruntime: " in said
    for one in told["targets"].values():  # the engines of the stand-in are ONNX Runtime's
        assert one["largest_difference"].keys() == graphs - {engines.DECISION}
        assert max(one["largest_difference"].values()) < 1e-4
    assert told["host"]["python"] == platform.python_version()
    assert engines.main(words) == 0
    assert "built none, 5 from the cache" in capsys.readouterr().out
    assert installed.builds == 5


def test_a_target_that_computes_something_else_is_seen(exported):
    artefact = artefacts.read(exported["remembers"])
    args = engines.EnginesArgs(targets=("onnxruntime",), calls=10)
    _, reference = engines.measure(artefact, "onnxruntime", args)

    class Off:
        def run(self, graph, inputs):
            return {n: v + 0.5 for n, v in reference.runner.run(graph, inputs).items()}

    apart = engines.differences(Off(), reference)
    assert all(difference == pytest.approx(0.5) for difference in apart.values())
    assert set(engines.differences(reference.runner, reference).values()) == {0.0}


def test_a_board_says_its_name_and_power_mode(monkeypatch, tmp_path):
    program = tmp_path / "nvpmodel"
    program.write_text("#!/bin/sh\necho 'NV Power Mode: MAXN'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = engines.host()
    assert facts["power_mode"] == "NV Power Mode: MAXN"
    assert facts["packages"]["onnxruntime"]
    program.write_text("#!/bin/sh\nexit 3\n")
    assert engines.host()["power_mode"] is None


def test_each_call_is_timed_and_the_first_ones_are_not():
    calls = []
    found = engines.timed(lambda: calls.append(1), 10)
    assert len(calls) == 10 + engines.WARMUP_CALLS
    assert set(found) == {"p50", "p95", "p99"}


def test_engines_of_what_cannot_be_timed_are_refused(exported, bare):
    with pytest.raises(ValueError, match="torch runs a checkpoint and has no engines"):
        engines.EnginesArgs(targets=("torch",))
    with pytest.raises(ValueError, match="targets: got none"):
        engines.EnginesArgs(targets=())
    with pytest.raises(ValueError, match="TensorRT is not installed"):
        engines.main([str(exported["remembers"])])


def test_all_targets_are_known_by_name():
    assert target_selection.target_names() == (
        "onnxruntime", "onnxruntime-cuda", "onnxruntime-tensorrt", "tensorrt", "torch",
        "torch-compile",
    )  # fmt: skip
