"""FP8 and NVFP4 as explicit Q/DQ: which factors have them, what they round, and what they leave."""

import shutil

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from deploy.commands import export, verify_export
from deploy.commands.export import ExportArgs
from deploy.commands.verify_export import VerifyExportArgs
from deploy.export import recorded
from deploy.precision import small_floats
from deploy.runtime import artefact as artefacts
from deploy.targets import onnxruntime
from tests.deploy import damage
from tests.deploy.conftest import made, made_up

EIGHT, FOUR = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1


@pytest.fixture
def every_size(monkeypatch):
    """Small matrices are changed as well."""
    monkeypatch.setattr(small_floats, "LARGE", 1)


def product(path, values, transposed=False):
    """Write a graph that multiplies x by a matrix, and adds a bias."""
    columns = values.shape[0] if transposed else values.shape[1]
    rows = values.shape[1] if transposed else values.shape[0]
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(transposed))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, columns])],
        [numpy_helper.from_array(values, "w"),
         numpy_helper.from_array(np.arange(columns, dtype=np.float32), "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, path)
    return path


def matrix(shape=(32, 6), seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    values *= np.logspace(-2, 1, shape[1], dtype=np.float32)  # channels of different sizes
    return values


def tensors(path, kind):
    return [t for t in onnx.load(path).graph.initializer if t.data_type == kind]


def run(path, x):
    return ReferenceEvaluator(str(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize("transposed", [False, True])
def test_fp8_rounds_each_channel_by_its_own_scale_and_activations_by_the_recorded_one(
    tmp_path, transposed, every_size
):
    values, x = matrix(), np.random.default_rng(1).normal(size=(3, 32)).astype(np.float32)
    path = product(tmp_path / "g.onnx", values.T.copy() if transposed else values, transposed)
    assert small_floats.fp8(path, [{"x": 0.1 * x}, {"x": x}]) == 1
    eight = ml_dtypes.float8_e4m3fn
    columns = np.abs(values).max(0) / 448
    rounded = (values / columns).astype(eight).astype(np.float32) * columns
    scale = np.abs(x).max() / 448
    given = (x / scale).astype(eight).astype(np.float32) * scale
    np.testing.assert_allclose(run(path, x), given @ rounded + np.arange(6), rtol=1e-4, atol=1e-4)
    assert [list(t.dims) for t in tensors(path, EIGHT) if len(t.dims) == 2] == [
        [6, 32] if transposed else [32, 6]
    ]
    assert not [t for t in tensors(path, TensorProto.FLOAT) if len(t.dims) == 2]


@pytest.mark.parametrize("transposed", [False, True])
def test_nvfp4_has_a_scale_for_16_numbers_along_the_sum(tmp_path, transposed, every_size):
    values, x = matrix(), np.random.default_rng(1).normal(size=(3, 32)).astype(np.float32)
    path = product(tmp_path / "g.onnx", values.T.copy() if transposed else values, transposed)
    assert small_floats.nvfp4(path) == 1
    (four,), (scales,) = tensors(path, FOUR), tensors(path, EIGHT)
    assert list(four.dims) == ([6, 32] if transposed else [32, 6])
    assert list(scales.dims) == ([6, 2] if transposed else [2, 6])
    assert onnx.load(path).opset_import[0].version == small_floats.FP4_OPSET
    found = run(path, x) - np.arange(6)
    # Between the numbers of E2M1 lies at most a third of the larger one: half of it is rounded.
    blocks = np.abs(values.reshape(2, 16, 6)).max(1).repeat(16, 0)
    bound = np.abs(x) @ (blocks / 6 * 1.15)
    assert (np.abs(found - x @ values) <= bound).all()
    assert np.corrcoef(found.ravel(), (x @ values).ravel())[0, 1] > 0.99


def test_what_four_bits_can_say_is_said_exactly(tmp_path, every_size):
    exact = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([exact, -exact, exact[::-1], -exact])[:, None].repeat(2, 1)
    path = product(tmp_path / "g.onnx", values)
    small_floats.nvfp4(path)
    x = np.eye(32, dtype=np.float32)[[1, 9, 30]]
    np.testing.assert_allclose(run(path, x), x @ values + np.arange(2), rtol=1e-6)


def test_a_sum_that_is_no_multiple_of_16_and_a_factor_that_is_computed_stay(tmp_path, every_size):
    path = product(tmp_path / "g.onnx", matrix((24, 4)))
    before = path.read_bytes()
    assert small_floats.nvfp4(path) == 0
    assert path.read_bytes() == before
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [24, 4]))
    del model.graph.initializer[0]
    onnx.save(model, path)
    assert small_floats.fp8(path, []) == 0


@pytest.fixture(scope="module")
def eight(exported, tmp_path_factory):
    """An exported policy in FP8."""
    copy = shutil.copytree(exported["remembers"], tmp_path_factory.mktemp("fp8") / "copy")
    seen = list(recorded.observations(made_up(), hz=10.0, count=24))
    export._calibrated(copy, seen, "fp8")
    damage.assert_private(copy)
    return copy


def test_a_policy_in_fp8_runs_on_a_cpu_and_is_near(eight):
    artefact = artefacts.read(eight)
    assert artefact.manifest.precision == "fp8"
    for name in artefact.manifest.graphs:
        nodes = [node.op_type for node in onnx.load(artefact.path(name)).graph.node]
        weights = [t for t in tensors(artefact.path(name), EIGHT) if len(t.dims) == 4]
        assert len(weights) == nodes.count("Conv")
        assert ("QuantizeLinear" in nodes) == bool(weights)
    args = VerifyExportArgs(reference_checkpoint=eight, dataset=eight, decisions=24, stages=6)
    engine = onnxruntime.Config().open(artefact)
    found = verify_export.compare(made("remembers"), artefact, engine, made_up(), args)
    assert found.stages["encode"].worst > 1e-4
    assert found.stages["encode"].cosine > 0.99
    assert 0 < found.action < 0.3
    assert not verify_export.failures(found, None, "fp8")


def test_a_policy_in_nvfp4_is_written_and_refused_where_nothing_runs_it(
    exported, tmp_path, monkeypatch
):
    copy = shutil.copytree(exported["remembers"], tmp_path / "copy")
    with pytest.raises(ValueError, match=r"without matrices of 262,144 numbers"):
        export._converted(copy, "nvfp4")
    monkeypatch.setattr(small_floats, "LARGE", 1)
    export._converted(copy, "nvfp4")
    artefact = artefacts.read(copy)
    assert artefact.manifest.precision == "nvfp4"
    assert any(tensors(artefact.path(name), FOUR) for name in artefact.manifest.graphs)
    for name in artefact.manifest.graphs:
        onnx.checker.check_model(str(artefact.path(name)), full_check=True)
    with pytest.raises(ValueError, match="has no operators of FP4, which is for TensorRT"):
        onnxruntime.Config().open(artefact).run("act", {})


def test_fp8_wants_recordings_and_nvfp4_none(tmp_path):
    with pytest.raises(ValueError, match="int8 and fp8 need recorded observations"):
        ExportArgs(out=tmp_path, precision="fp8")
    with pytest.raises(ValueError, match="others none"):
        ExportArgs(out=tmp_path, precision="nvfp4", dataset=tmp_path)
