"""Convolutions of eight bits: where they are, what they change, and what they leave alone."""

import shutil

import numpy as np
import onnx
import pytest

from deploy import artefact as artefacts
from deploy import export, parity, recorded
from deploy.export import ExportArgs
from deploy.parity import ParityArgs
from deploy.targets import onnxruntime
from tests.deploy.conftest import made, made_up


@pytest.fixture
def folder(exported, tmp_path):
    """An exported policy whose convolutions are int8."""
    copy = shutil.copytree(exported["remembers"], tmp_path / "copy")
    seen = list(recorded.observations(made_up(), hz=10.0, count=24))
    export._quantized(copy, seen)
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
    args = ParityArgs(against=folder, data=folder, decisions=24, stages=6)
    engine = onnxruntime.Config().open(artefact)
    found = parity.compare(made("remembers"), artefact, engine, made_up(), args)
    exact = [name for name in found.stages if name not in ("encode", "refine", "decide")]
    assert all(found.stages[name].worst < 1e-4 for name in exact)
    for name in ("encode", "refine"):
        assert found.stages[name].worst > 1e-4
        assert found.stages[name].cosine > 0.99
    assert 0 < found.action < 0.2
    assert parity.faults(found, None, "fp32")
    assert not parity.faults(found, None, "int8")


def test_the_same_recordings_make_the_same_graphs(exported, folder, tmp_path):
    again = shutil.copytree(exported["remembers"], tmp_path / "again")
    export._quantized(again, list(recorded.observations(made_up(), hz=10.0, count=24)))
    first, second = artefacts.read(folder).manifest, artefacts.read(again).manifest
    assert first.graphs == second.graphs


def test_recordings_of_another_arm_are_refused(arm_dataset, tmp_path):
    data = shutil.copytree(arm_dataset, tmp_path / "data")
    with pytest.raises(ValueError, match="6 states and 6 actions .* the robot has 2 channels"):
        recorded.load(data, made("remembers"))


@pytest.mark.parametrize("given", [{"precision": "int8"}, {"calibrate": "data"}])
def test_int8_goes_with_recordings_and_fp32_without(given, tmp_path):
    with pytest.raises(ValueError, match="give both --precision int8 --calibrate DATASET"):
        ExportArgs(
            out=tmp_path, **{k: tmp_path if k == "calibrate" else v for k, v in given.items()}
        )


def test_a_recorder_keeps_what_was_given_not_what_became_of_it():
    class Echo:
        def run(self, graph, inputs):
            inputs["x"][:] = 7
            return {}

    recorder = export.quantize.Recorder(Echo())
    recorder.run("g", {"x": np.zeros(2)})
    assert recorder.seen["g"][0]["x"].tolist() == [0, 0]
