"""What a target runs is what the manifest's hashes cover, whenever it is loaded."""

import gc
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.runtime import artefact as artefacts
from deploy.runtime.external_data import has_external_data
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime
from tests.fakes import fake_observation


@pytest.fixture
def folder(exported, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(exported["remembers"], tmp_path / "copy")


def opened(folder, **settings):
    artefact = artefacts.read(folder)
    return DeployedPolicy(artefact, onnxruntime.Config().open(artefact), **settings)


def acts(policy):
    obs = fake_observation(np.random.default_rng(0), 1)
    return policy.act(obs, policy.initial_state(1), np.zeros((1, *policy.noise_shape), np.float32))[
        0
    ]


def outside(folder, graph):
    """Move a graph's weights to a file beside it; return the artefact with the graph's new hash."""
    path = folder / f"{graph}.onnx"
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    artefact = artefacts.read_manifest(folder, artefacts.Manifest, "policy")
    changed = replace(artefact.graphs[graph], sha256=artefacts.sha256(path))
    artefacts.write_manifest(
        folder, replace(artefact, graphs={**artefact.graphs, graph: changed})
    )  # fmt: skip


@pytest.mark.parametrize("stage", ["encode", "denoise"])
def test_a_stage_that_is_replaced_before_it_first_runs_is_refused(folder, stage):
    policy = opened(folder, split=True)
    path = folder / f"{stage}.onnx"
    model = onnx.load(path)
    weights = model.graph.initializer[0]
    values = numpy_helper.to_array(weights)
    weights.CopyFrom(numpy_helper.from_array(values + 1, weights.name))
    onnx.save(model, path)
    with pytest.raises(ValueError, match=f"{stage}.onnx: was changed since it was opened; open it"):
        acts(policy)


def test_a_stage_that_is_gone_before_it_first_runs_is_one_sentence(folder):
    policy = opened(folder)
    (folder / "act.onnx").unlink()
    with pytest.raises(ValueError, match="act.onnx: cannot be read .No such file or directory.; "):
        acts(policy)


def test_a_loaded_stage_runs_on_when_its_file_is_replaced(folder):
    policy = opened(folder)
    before = acts(policy).values
    (folder / "act.onnx").write_bytes(b"another")
    np.testing.assert_array_equal(acts(policy).values, before)


def test_weights_in_another_file_are_refused(folder):
    outside(folder, "act")
    with pytest.raises(ValueError, match="act.onnx: keeps weights in another file, which no hash"):
        acts(opened(folder))


def test_the_bytes_of_a_loaded_stage_are_dropped(folder, monkeypatch):
    class Bytes(bytes):
        """Bytes that the garbage collector can count."""

    read = artefacts.ExportedGraphs.graph_bytes
    monkeypatch.setattr(
        artefacts.ExportedGraphs, "graph_bytes", lambda self, name: Bytes(read(self, name))
    )
    policy = opened(folder)
    acts(policy)
    gc.collect()
    assert not any(isinstance(one, Bytes) for one in gc.get_objects())
    assert policy.runner.sessions["act"]._model_bytes is None


def test_weights_elsewhere_are_found_wherever_a_graph_has_tensors():
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    far = onnx.TensorProto()
    far.CopyFrom(tensor)
    far.data_location = TensorProto.EXTERNAL
    far.external_data.add(key="location", value="weights.bin")
    port = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])

    def model(tensor, how):
        constant = helper.make_node("Constant", [], ["y"], value=tensor)
        inner = helper.make_graph([constant], "inner", [], [port])
        nodes = {
            "initializer": [helper.make_node("Identity", ["w"], ["y"])],
            "constant": [constant],
            "branch": [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        }[how]
        graph = helper.make_graph(
            nodes, "g", [condition], [port], [tensor] if how == "initializer" else []
        )
        return helper.make_model(graph).SerializeToString()

    for how in ("initializer", "constant", "branch"):
        assert not has_external_data(model(tensor, how))
        assert has_external_data(model(far, how)), how


@pytest.mark.parametrize("data", [b"\x0f", b"\x08\xff", b"\x7f\x00"])
def test_bytes_that_are_no_graph_are_refused(data):
    with pytest.raises(ValueError, match="no ONNX graph"):
        has_external_data(data)
