"""Convolutions of eight bits: where they are, what they change, and what they leave alone."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as engine
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.commands import export, verify_export
from deploy.commands.export import ExportArgs
from deploy.commands.verify_export import VerifyExportArgs
from deploy.export import recorded
from deploy.precision import quantize
from deploy.runtime import artefact as artefacts
from deploy.runtime.policy import DeployedPolicy
from deploy.runtime.recording import RecordingRunner
from deploy.targets import onnxruntime
from tests.deploy import damage
from tests.deploy.conftest import made, made_up
from tests.fakes import fake_observation


@pytest.fixture
def folder(exported, tmp_path):
    """An exported policy whose convolutions are int8."""
    copy = shutil.copytree(exported["remembers"], tmp_path / "copy")
    seen = list(recorded.observations(made_up(), hz=10.0, count=24))
    export._calibrated(copy, seen, "int8")
    damage.assert_private(copy)
    return copy


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_convolutions_alone_are_of_eight_bits(exported, folder):
    before, after = artefacts.read(exported["remembers"]), artefacts.read(folder)
    assert (before.manifest.precision, after.manifest.precision) == ("fp32", "int8")
    for name in after.manifest.graphs:
        convolutions = operators(before.path(name)).count("Conv")
        weights = [i for i in onnx.load(after.path(name)).graph.initializer
                   if i.data_type == onnx.TensorProto.INT8 and len(i.dims) == 4]  # fmt: skip
        assert len(weights) == convolutions
        assert ("QuantizeLinear" in operators(after.path(name))) == bool(convolutions)
        same = before.path(name).read_bytes() == after.path(name).read_bytes()
        assert same == (convolutions == 0)
        assert before.manifest.graphs[name].inputs == after.manifest.graphs[name].inputs
    assert {p.name for p in folder.iterdir()} == {p.name for p in before.folder.iterdir()}


def test_it_is_near_and_only_the_stages_with_convolutions_differ(folder):
    artefact = artefacts.read(folder)
    args = VerifyExportArgs(reference_checkpoint=folder, dataset=folder, decisions=24, stages=6)
    engine = onnxruntime.Config().open(artefact)
    found = verify_export.compare(made("remembers"), artefact, engine, made_up(), args)
    exact = [name for name in found.stages if name not in ("encode", "condition", "act")]
    assert all(found.stages[name].worst < 1e-4 for name in exact)
    for name in ("encode", "condition"):
        assert found.stages[name].worst > 1e-4
        assert found.stages[name].cosine > 0.99
    assert 0 < found.action < 0.2
    assert verify_export.failures(found, None, "fp32")
    assert not verify_export.failures(found, None, "int8")


def test_the_same_recordings_make_the_same_graphs(exported, folder, tmp_path):
    again = shutil.copytree(exported["remembers"], tmp_path / "again")
    export._calibrated(again, list(recorded.observations(made_up(), hz=10.0, count=24)), "int8")
    first, second = artefacts.read(folder).manifest, artefacts.read(again).manifest
    assert first.graphs == second.graphs


def test_recordings_of_another_arm_are_refused(arm_dataset, tmp_path):
    data = shutil.copytree(arm_dataset, tmp_path / "data")
    with pytest.raises(ValueError, match="6 states and 6 actions .* the robot has 2 channels"):
        recorded.load(data, made("remembers"))


@pytest.mark.parametrize("given", [{"precision": "int8"}, {"dataset": "data"}])
def test_int8_goes_with_recordings_and_fp32_without(given, tmp_path):
    with pytest.raises(ValueError, match="give both --precision int8 --dataset DATASET"):
        ExportArgs(out=tmp_path, **{k: tmp_path if k == "dataset" else v for k, v in given.items()})


def test_a_recorder_keeps_what_was_given_not_what_became_of_it():
    class Echo:
        def run(self, graph, inputs):
            inputs["x"][:] = 7
            return {}

    recorder = RecordingRunner(Echo())
    recorder.run("g", {"x": np.zeros(2)})
    assert recorder.calls["g"][0][0]["x"].tolist() == [0, 0]


def test_a_large_matrix_is_read_in_eight_bits_and_a_small_one_is_not(tmp_path):
    rng = np.random.default_rng(0)
    large, small = (rng.standard_normal((n, 512), np.float32) for n in (512, 8))
    x, bias = rng.standard_normal((1, 512), np.float32), rng.standard_normal(512, np.float32)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
             for n, s in {"x": [1, 512], "y": [1, 8]}.items()]  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "large", "bias"], ["one"], transB=1),
        helper.make_node("MatMul", ["one", "large"], ["two"]),
        helper.make_node("Gemm", ["two", "large", "bias"], ["three"], transB=1),
        helper.make_node("Gemm", ["three", "small"], ["y"], transB=1),
    ]
    values = {"large": large, "bias": bias, "small": small}
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "some", ports[:1], ports[1:], weights)
    path = tmp_path / "some.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    before = path.stat().st_size
    assert quantize.quantize(path, [], rows=2) == 0  # rows would share a scale
    assert quantize.quantize(path, [], rows=1) == 3
    assert path.stat().st_size < 0.6 * before  # it is used in both directions, and kept twice
    kinds = operators(path)
    assert kinds.count("MatMulInteger") == 3
    assert kinds.count("Gemm") == 1
    session = engine.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    one = x @ large.T + bias
    expected = ((one @ large) @ large.T + bias) @ small.T
    assert 1e-6 < np.abs(found - expected).max() / np.abs(expected).max() < 0.05


def test_what_is_not_a_number_is_refused_where_whole_numbers_would_hide_it(folder):
    policy = DeployedPolicy(
        artefacts.read(folder), onnxruntime.Config().open(artefacts.read(folder))
    )
    obs = fake_observation(np.random.default_rng(0), 1)
    obs = replace(obs, proprio=np.full_like(obs.proprio, np.nan))
    noise = np.zeros((1, *policy.noise_shape), np.float32)
    with pytest.raises(ValueError, match="proprio: is not finite; hold the arm"):
        policy.act(obs, policy.initial_state(1), noise)
