"""Sixteen bits: where they are, what they change, and what they leave alone."""

import shutil

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.commands import export, verify_export
from deploy.commands.verify_export import VerifyExportArgs
from deploy.precision import sixteen_bit
from deploy.runtime import artefact as artefacts
from deploy.targets import onnxruntime
from tests.deploy import damage
from tests.deploy.conftest import made, made_up

HALVES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
FLOATING = (TensorProto.FLOAT, *HALVES.values())


@pytest.fixture(params=HALVES)
def halved(request, exported, tmp_path):
    copy = shutil.copytree(exported["remembers"], tmp_path / "copy")
    export._converted(copy, request.param)
    return request.param, copy, exported["remembers"]


def test_learned_factors_have_sixteen_bits_and_nothing_else_has(halved):
    half, folder, before = halved
    new, old = artefacts.read(folder), artefacts.read(before)
    assert new.manifest.precision == half
    damage.assert_private(folder)
    for name, graph in new.manifest.graphs.items():
        assert graph.inputs == old.manifest.graphs[name].inputs  # all that goes in and out is FP32
        assert graph.outputs == old.manifest.graphs[name].outputs
        model = onnx.load(new.path(name))
        short = {i.name for i in model.graph.initializer if i.data_type == HALVES[half]}
        users = [n for n in model.graph.node if short & set(n.input)]
        assert {n.op_type for n in users} <= {"Conv", "Gemm", "MatMul"}
        for node in users:  # what it gives is FP32 again at once
            takers = [n for n in model.graph.node if node.output[0] in n.input]
            assert [n.op_type for n in takers] == ["Cast"]
    whole = onnx.load(new.path("act"))
    kinds = {n.op_type for n in whole.graph.node}
    assert {"Conv", "Gemm"} <= kinds
    plain = {i.name for i in whole.graph.initializer if i.data_type == TensorProto.FLOAT}
    wide = [n for n in whole.graph.node if n.op_type in ("Conv", "Gemm") and plain & set(n.input)]
    assert not wide  # none was forgotten
    assert new.path("denoise").stat().st_size < 0.6 * old.path("denoise").stat().st_size


def test_it_runs_on_a_cpu_and_is_near(halved):
    half, folder, _ = halved
    artefact = artefacts.read(folder)
    args = VerifyExportArgs(reference_checkpoint=folder, dataset=folder, decisions=24, stages=6)
    engine = onnxruntime.Config().open(artefact)
    found = verify_export.compare(made("remembers"), artefact, engine, made_up(), args)
    bits = {"fp16": 11, "bf16": 8}[half]
    assert 0.01 * 2**-bits < found.action < 20 * 2**-bits
    assert all(one.cosine > 0.99 for one in found.stages.values())
    assert verify_export.failures(found, None, "fp32")
    assert not verify_export.failures(found, None, half)


def test_bf16_computed_in_fp32_rounds_as_bf16_does(tmp_path):
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((3, 8), np.float32), rng.standard_normal(3, np.float32)
    x = rng.standard_normal((2, 8), np.float32)
    sized = {"x": [2, 8], "y": [2, 3]}
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sized.items()]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)], "one", ports[:1], ports[1:],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    path = tmp_path / "one.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    assert sixteen_bit.halve(path, "bf16") == 1

    def rounded(values):
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)

    import onnxruntime as engine

    session = engine.InferenceSession(
        sixteen_bit.bf16_as_fp32(path.read_bytes()), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": x})
    expected = rounded(rounded(x) @ rounded(weight).T + rounded(bias))
    np.testing.assert_allclose(found, expected, rtol=2**-7)
    exact = x @ weight.T + bias
    assert np.abs(found - exact).max() > 1e-4
    assert (found == rounded(found)).all()


def test_a_graph_without_learned_factors_is_left_as_it_is(tmp_path):
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "two", ports[:1], ports[1:])
    path = tmp_path / "two.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    before = path.read_bytes()
    assert sixteen_bit.halve(path, "fp16") == 0
    assert path.read_bytes() == before
