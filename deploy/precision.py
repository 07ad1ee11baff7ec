"""Sixteen bits: convolutions and products with learned matrices, nothing else.

Everything between them stays FP32, with casts before and after: reductions of normalisations, the
softmax, keypoints, what memory compares and merges, and whatever goes in and out. A strongly typed
engine takes the graph at its word.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy import folded

Half = Literal["fp16", "bf16"]
TYPES: dict[Half, tuple[int, type]] = {
    "fp16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
"""What ONNX and numpy call them."""
HALVED = ("Conv", "Gemm", "MatMul")
"""Operators that have a learned factor, and take most of the time."""


def halve(path: Path, half: Half) -> int:
    """Replace a graph by one whose large factors have sixteen bits; return how many there are."""
    model = folded.load(path)
    known = {one.name: one for one in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in model.graph.node:
        learned = [name for name in node.input[1:] if name in known]
        if node.op_type not in HALVED or len(learned) != len(node.input) - 1:
            nodes.append(node)
            continue
        nodes += _halved(node, half)
        for name in learned:
            _round(model, known, name, half)
        count += 1
    if count:
        folded.save(model, nodes, path)
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
    model: onnx.ModelProto, known: dict[str, onnx.TensorProto], name: str, half: Half
) -> None:
    short = f"{name}_{half}"
    if short not in known:
        values: np.ndarray = numpy_helper.to_array(known[name]).astype(TYPES[half][1])
        known[short] = numpy_helper.from_array(values, short)
        model.graph.initializer.append(known[short])


def widened(path: Path) -> bytes:
    """Return a graph of bf16 for an engine that has no such operators: the same rounding, computed
    in FP32.
    """
    model = onnx.load(path)
    short, _ = TYPES["bf16"]
    rounded = {one.name for one in model.graph.initializer if one.data_type == short}
    rounded |= {node.output[0] for node in model.graph.node if _casts_to(node, short)}
    nodes = [_cast(name, f"{name}_wide", TensorProto.FLOAT) for name in sorted(rounded)]
    wide = {node.input[0]: node for node in nodes}
    found = [wide[one.name] for one in model.graph.initializer if one.name in wide]
    for node in model.graph.node:
        if _casts_to(node, short):
            found += [node, wide[node.output[0]]]
        elif any(name in wide for name in node.input):
            inner = onnx.NodeProto()
            inner.CopyFrom(node)
            for i, name in enumerate(node.input):
                inner.input[i] = f"{name}_wide" if name in wide else name
            inner.output[0] = f"{node.output[0]}_exact"
            found += [inner, _cast(inner.output[0], node.output[0], short)]
        else:
            found.append(node)
    del model.graph.node[:]
    model.graph.node.extend(found)
    return model.SerializeToString()


def _cast(given: str, made: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [given], [made], to=to)


def _casts_to(node: onnx.NodeProto, to: int) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i == to for a in node.attribute)
