"""Sixteen bits: convolutions and products with learned matrices, each between two casts.

Everything else stays FP32: reductions of normalisations, softmax, keypoints, what memory compares
and merges, inputs and outputs. A strongly typed engine keeps exactly these types.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.precision import constant_folding

Half = Literal["fp16", "bf16"]
TYPES: dict[Half, tuple[int, type]] = {
    "fp16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
"""Their types in ONNX and numpy."""
HALVED = ("Conv", "Gemm", "MatMul")
"""Operators with a learned factor, which take most of the time."""


def halve(path: Path, half: Half) -> int:
    """Give the learned factors of a graph sixteen bits; return the number of operators changed."""
    model = constant_folding.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in model.graph.node:
        learned = [name for name in node.input[1:] if name in constants]
        if node.op_type not in HALVED or len(learned) != len(node.input) - 1:
            nodes.append(node)
            continue
        nodes += _halved(node, half)
        for name in learned:
            _round(model, constants, name, half)
        count += 1
    if count:
        constant_folding.save(model, nodes, path)
    return count


def _halved(node: onnx.NodeProto, half: Half) -> Iterator[onnx.NodeProto]:
    """Yield an operator between two casts."""
    before, after = f"{node.output[0]}_{half}_in", f"{node.output[0]}_{half}_out"
    short, _ = TYPES[half]
    yield helper.make_node("Cast", [node.input[0]], [before], to=short)
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.input[0], inner.output[0] = before, after
    for i, name in enumerate(node.input[1:], 1):
        inner.input[i] = f"{name}_{half}"
    yield inner
    yield helper.make_node("Cast", [after], [node.output[0]], to=TensorProto.FLOAT)


def _round(
    model: onnx.ModelProto, constants: dict[str, onnx.TensorProto], name: str, half: Half
) -> None:
    short = f"{name}_{half}"
    if short not in constants:
        values: np.ndarray = numpy_helper.to_array(constants[name]).astype(TYPES[half][1])
        constants[short] = numpy_helper.from_array(values, short)
        model.graph.initializer.append(constants[short])


def bf16_as_fp32(graph: bytes) -> bytes:
    """Return a bf16 graph with the same rounding computed in FP32, for runtimes without bf16."""
    model = onnx.load_from_string(graph)
    short, _ = TYPES["bf16"]
    rounded = {t.name for t in model.graph.initializer if t.data_type == short}
    rounded |= {node.output[0] for node in model.graph.node if _casts_to(node, short)}
    nodes = [_cast(name, f"{name}_wide", TensorProto.FLOAT) for name in sorted(rounded)]
    wide = {node.input[0]: node for node in nodes}
    changed = [wide[t.name] for t in model.graph.initializer if t.name in wide]
    for node in model.graph.node:
        if _casts_to(node, short):
            changed += [node, wide[node.output[0]]]
        elif any(name in wide for name in node.input):
            inner = onnx.NodeProto()
            inner.CopyFrom(node)
            for i, name in enumerate(node.input):
                inner.input[i] = f"{name}_wide" if name in wide else name
            inner.output[0] = f"{node.output[0]}_exact"
            changed += [inner, _cast(inner.output[0], node.output[0], short)]
        else:
            changed.append(node)
    del model.graph.node[:]
    model.graph.node.extend(changed)
    return model.SerializeToString()


def _cast(source: str, result: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], to=to)


def _casts_to(node: onnx.NodeProto, to: int) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i == to for a in node.attribute)
