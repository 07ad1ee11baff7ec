"""Floats of eight and four bits with explicit Q/DQ, as TensorRT's strongly typed engines take them.

fp8: factors of convolutions, and of products with large matrices, are FP8 (E4M3): activations by
one scale of each tensor, fitted on recorded inputs, weights by one of each output channel. nvfp4:
large matrices alone, FP4 (E2M1) in blocks of 16 along the sum, with an FP8 scale each and one FP32
scale of the matrix (NVIDIA's NVFP4). Biases and everything else stay FP32.
"""

from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, version_converter

from deploy.precision import constant_folding
from deploy.precision.quantize import LARGE, PRODUCTS

FP8_MAX = 448.0
"""Largest FP8 number (E4M3)."""
FP4_MAX = 6.0
"""Largest FP4 number (E2M1)."""
BLOCK = 16
"""Numbers of a matrix that share a scale."""
FP4_OPSET = 23
"""First version of ONNX's operators with FP4."""
EIGHT, FOUR = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1
LEAST = 1e-12
"""Smallest scale: a factor of nothing but zeros has one as well."""


def fp8(path: Path, inputs: Iterable[dict[str, np.ndarray]]) -> int:
    """Give the factors of a graph eight bits; return the number of operators changed.

    Args:
        path: The graph; left as it is if it has no such factors.
        inputs: Recorded inputs, for the range of its activations.
    """
    model = constant_folding.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    chosen = [node for node in model.graph.node if _is_learned(node, constants)]
    if not chosen:
        return 0
    largest = _largest(model, sorted({node.input[0] for node in chosen}), inputs)
    added, nodes = [_zero("fp8_zero", ())], []
    made: set[str] = set()
    for node in model.graph.node:
        if not _is_learned(node, constants):
            nodes.append(node)
            continue
        (x, weight), rest = node.input[:2], node.input[2:]
        if x not in made:
            scale = np.asarray(max(largest[x] / FP8_MAX, LEAST), np.float32)
            added.append(numpy_helper.from_array(scale, f"{x}_fp8_scale"))
            taking = [f"{x}_fp8_scale", "fp8_zero"]
            nodes += [
                helper.make_node("QuantizeLinear", [x, *taking], [f"{x}_fp8"]),
                helper.make_node("DequantizeLinear", [f"{x}_fp8", *taking], [f"{x}_from_fp8"]),
            ]
        if weight not in made:
            axis = _channels(node)
            added += _weight(weight, numpy_helper.to_array(constants[weight]), axis)
            parts = [f"{weight}_fp8", f"{weight}_fp8_scale", f"{weight}_fp8_zero"]
            nodes.append(
                helper.make_node("DequantizeLinear", parts, [f"{weight}_from_fp8"], axis=axis)
            )
        made |= {x, weight}
        nodes.append(_with_inputs(node, [f"{x}_from_fp8", f"{weight}_from_fp8", *rest]))
    model.graph.initializer.extend(added)
    constant_folding.save(model, nodes, path)
    return len(chosen)


def nvfp4(path: Path) -> int:
    """Give the matrices of a graph's products four bits; return the number of operators changed.

    A matrix whose sum is not a multiple of `BLOCK` long stays as it is.
    """
    model = constant_folding.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes, count = [], 0
    made: set[str] = set()
    for node in model.graph.node:
        weight = node.input[1] if len(node.input) > 1 else ""
        along = 1 if _channels(node) == 0 else 0  # the axis that is summed over
        fits = weight in constants and len(constants[weight].dims) == 2
        fits = fits and node.op_type != "Conv" and constants[weight].dims[along] % BLOCK == 0
        if not (fits and _is_learned(node, constants)):
            nodes.append(node)
            continue
        if weight not in made:
            made.add(weight)
            values = numpy_helper.to_array(constants[weight])
            model.graph.initializer.extend(_blocks(weight, values, along))
            scales = [f"{weight}_fp4_scales", f"{weight}_fp4_scale"]
            nodes += [
                helper.make_node("DequantizeLinear", scales, [f"{weight}_block_scales"]),
                helper.make_node(
                    "DequantizeLinear", [f"{weight}_fp4", f"{weight}_block_scales"],
                    [f"{weight}_from_fp4"], axis=along, block_size=BLOCK,
                ),
            ]  # fmt: skip
        nodes.append(_with_inputs(node, [node.input[0], f"{weight}_from_fp4", *node.input[2:]]))
        count += 1
    if count:
        newer = version_converter.convert_version(onnx.load(path), FP4_OPSET)
        model.opset_import[0].version = newer.opset_import[0].version
        model.ir_version = max(model.ir_version, newer.ir_version, 11)
        constant_folding.save(model, nodes, path)
    return count


def _is_learned(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Return whether an operator's factors are an activation and a constant that gains by it."""
    return bool(
        node.op_type in ("Conv", *PRODUCTS)
        and node.input[0] not in constants
        and all(name in constants for name in node.input[1:])
        and (node.op_type == "Conv" or np.prod(constants[node.input[1]].dims) >= LARGE)
    )


def _channels(node: onnx.NodeProto) -> int:
    """Return the axis of a weight that runs over output channels."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return 0 if node.op_type == "Conv" or attributes.get("transB", 0) else 1


def _with_inputs(node: onnx.NodeProto, names: list[str]) -> onnx.NodeProto:
    other = onnx.NodeProto()
    other.CopyFrom(node)
    del other.input[:]
    other.input.extend(names)
    return other


def _largest(
    model: onnx.ModelProto, names: list[str], inputs: Iterable[dict[str, np.ndarray]]
) -> dict[str, float]:
    """Return the largest magnitude of tensors inside a graph over some inputs."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    outer = {value.name for value in (*seen.graph.input, *seen.graph.output)}
    watched = [name for name in names if name not in outer]
    seen.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in watched
    )
    session = onnxruntime.InferenceSession(
        seen.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    computed = [output.name for output in session.get_outputs()]
    largest = dict.fromkeys(names, 0.0)
    for given in inputs:
        values = {**given, **dict(zip(computed, session.run(None, given), strict=True))}
        for name in names:
            largest[name] = max(largest[name], float(np.abs(values[name]).max(initial=0)))
    return largest


def _zero(name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    raw = np.zeros(shape, ml_dtypes.float8_e4m3fn).tobytes()
    return helper.make_tensor(name, EIGHT, shape, raw, raw=True)


def _weight(name: str, values: np.ndarray, axis: int) -> list[onnx.TensorProto]:
    """Return a weight in FP8, its scales and their zero points."""
    others = tuple(i for i in range(values.ndim) if i != axis)
    scale = np.maximum(np.abs(values).max(others, keepdims=True) / FP8_MAX, LEAST)
    small = (values / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    flat = scale.astype(np.float32).reshape(-1)
    return [
        helper.make_tensor(f"{name}_fp8", EIGHT, values.shape, small.tobytes(), raw=True),
        numpy_helper.from_array(flat, f"{name}_fp8_scale"),
        _zero(f"{name}_fp8_zero", flat.shape),
    ]


def _blocks(name: str, values: np.ndarray, along: int) -> list[onnx.TensorProto]:
    """Return a matrix in FP4, the FP8 scales of its blocks, and the scale of those."""
    lines = np.moveaxis(values, along, 0)
    blocks = lines.reshape(-1, BLOCK, lines.shape[1])
    largest = float(np.abs(values).max())
    whole = np.asarray(max(largest / (FP4_MAX * FP8_MAX), LEAST), np.float32)
    scales = (np.abs(blocks).max(1) / FP4_MAX / whole).astype(ml_dtypes.float8_e4m3fn)
    real = scales.astype(np.float32) * whole
    small = np.divide(blocks, real[:, None], out=np.zeros_like(blocks), where=real[:, None] > 0)
    small = np.clip(small, -FP4_MAX, FP4_MAX)  # a scale that was rounded down
    rows = np.moveaxis(small.reshape(lines.shape), 0, along)
    ordered = np.ascontiguousarray(np.moveaxis(scales, 0, along))
    return [
        helper.make_tensor(f"{name}_fp4", FOUR, values.shape, rows.reshape(-1)),
        helper.make_tensor(f"{name}_fp4_scales", EIGHT, ordered.shape, ordered.tobytes(), raw=True),
        numpy_helper.from_array(whole, f"{name}_fp4_scale"),
    ]
