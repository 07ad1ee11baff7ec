"""Eight bits: convolutions with explicit Q/DQ, calibrated on recorded observations, and the large
matrices.

In a small policy's decision on a CPU the convolutions take most, and they lose least. Products with
small matrices stay in FP32: at one row they are not faster in eight bits, and the layer that finds
keypoints loses a tenth; memory has no others. A large matrix takes as long as it is read: in eight
bits a fourth of that.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import quantization

from deploy import folded
from deploy.policy import DeployedPolicy, Engine
from vla.contracts.types import Observation

QUANTIZED = ("Conv",)
"""Operators with numbers of eight bits."""
PRODUCTS = ("Gemm", "MatMul")
"""Products, with a matrix as their second factor."""
LARGE = 1 << 18
"""Least numbers of a matrix that is read in eight bits: more than the nearest cache holds."""
EVERY = 3
"""Of so many recorded inputs one calibrates."""


class Recorder:
    """An engine that remembers what its graphs are given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: dict[str, list[dict[str, np.ndarray]]] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        self.seen.setdefault(graph, []).append({k: np.array(v) for k, v in inputs.items()})
        return self.engine.run(graph, inputs)


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, inputs: Iterable[dict[str, np.ndarray]]) -> None:
        self.inputs: Iterator[dict[str, np.ndarray]] = iter(inputs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next inputs, None at the end."""
        return next(self.inputs, None)


def record(
    policies: Iterable[DeployedPolicy], observations: list[Observation], seed: int
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return what every graph is given while policies decide on observations of one row.

    Args:
        policies: Run whole and stage by stage: between them, every graph.
        observations: One unbroken episode.
        seed: Of the noise.
    """
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for policy in policies:
        recorder = Recorder(policy.engine)
        policy.engine = recorder
        rng, state = np.random.default_rng(seed), policy.initial_state(1)
        for obs in observations:
            noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
            _, state = policy.act(obs, state, noise)
        policy.engine = recorder.engine
        found |= recorder.seen
    return found


def quantize(path: Path, inputs: list[dict[str, np.ndarray]], rows: int) -> int:
    """Replace a graph by one of eight bits; return how many operators are.

    Args:
        path: The graph; left as it is if it has neither convolution nor large matrix.
        inputs: What it was given; extremes of its numbers come from these.
        rows: How many it decides at once. Of several, large matrices stay FP32: all rows would
            share one scale, and what is decided for an arm would depend on the others.
    """
    count = sum(node.op_type in QUANTIZED for node in onnx.load(path).graph.node)
    if count:
        fresh = path.with_suffix(".int8")
        root = logging.getLogger()  # the library warns through it
        level = root.level
        root.setLevel(logging.ERROR)
        quantization.quantize_static(
            str(path), str(fresh), _Reader(inputs[::EVERY]),
            quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8, op_types_to_quantize=list(QUANTIZED),
        )  # fmt: skip
        root.setLevel(level)
        fresh.replace(path)
    return count + (_shrink(path) if rows == 1 else 0)


def _shrink(path: Path) -> int:
    """Read the large matrices of a graph in eight bits; return how many products they are in.

    Each of their columns has a scale. What they are multiplied with is rounded to eight bits as it
    comes, so there is nothing to calibrate: x W = s_x s_W (x / s_x) (W / s_W), where the product in
    between is one of integers.
    """
    model = folded.load(path)
    known = {one.name: one for one in model.graph.initializer}
    nodes, count, made = [], 0, set[str]()
    for node in model.graph.node:
        weight = known.get(node.input[1]) if node.op_type in PRODUCTS else None
        how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        columns = bool(how.pop("transB", 0))
        plain = how.pop("alpha", 1.0) == how.pop("beta", 1.0) == 1.0 and not any(how.values())
        large = weight is not None and len(weight.dims) == 2 and np.prod(weight.dims) >= LARGE
        if weight is None or not large or not plain:
            nodes.append(node)
            continue
        name = f"{weight.name}_across" if columns else weight.name
        if name not in made:
            made.add(name)
            values = numpy_helper.to_array(weight)
            model.graph.initializer.extend(_rounded(name, values.T if columns else values))
        nodes += _integer_product(node, name, f"{node.output[0]}_int8")
        count += 1
    if count:
        folded.save(model, nodes, path)
    return count


def _rounded(name: str, values: np.ndarray) -> list[onnx.TensorProto]:
    """Return a matrix f32 [k, n] as integers, and the scale of each of its columns."""
    scale = np.maximum(np.abs(values).max(0) / 127, 1e-12).astype(np.float32)
    rounded = np.clip(np.round(values / scale), -127, 127).astype(np.int8)
    return [
        numpy_helper.from_array(np.ascontiguousarray(rounded), f"{name}_int8"),
        numpy_helper.from_array(scale, f"{name}_scale"),
    ]


def _integer_product(node: onnx.NodeProto, weight: str, as_: str) -> list[onnx.NodeProto]:
    """Return what does the work of a product with a large matrix, in an engine's known pattern."""
    bias = list(node.input[2:])
    names = [f"{as_}_{part}" for part in ("x", "scale", "zero", "sum", "real", "both", "out")]
    x, scale, zero, whole, real, both, out = names
    make = helper.make_node
    return [
        make("DynamicQuantizeLinear", [node.input[0]], [x, scale, zero]),
        make("MatMulInteger", [x, f"{weight}_int8", zero], [whole]),
        make("Cast", [whole], [real], to=onnx.TensorProto.FLOAT),
        make("Mul", [scale, f"{weight}_scale"], [both]),
        make("Mul", [real, both], [out if bias else node.output[0]]),
        *([make("Add", [out, bias[0]], [node.output[0]])] if bias else []),
    ]
