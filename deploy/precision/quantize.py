"""Eight bits: convolutions with explicit Q/DQ, calibrated on recorded observations, and large
matrices.

On a CPU the convolutions take most of a small policy's time and lose least accuracy. Products with
small matrices stay in FP32: at one row they are not faster in eight bits, and the keypoint layer
loses a tenth. A large matrix is bound by reading it: eight bits are a fourth of that.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import quantization

from deploy.precision import constant_folding
from deploy.runtime.policy import DeployedPolicy
from deploy.runtime.recording import RecordingRunner
from vla.contracts.types import Observation

QUANTIZED = ("Conv",)
"""Operators that are quantised."""
PRODUCTS = ("Gemm", "MatMul")
"""Products, with a matrix as their second factor."""
LARGE = 1 << 18
"""Smallest size, in numbers, of a matrix that is quantised: more than the first cache holds."""
EVERY = 3
"""One recorded input of this many is used for calibration."""


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, inputs: Iterable[dict[str, np.ndarray]]) -> None:
        self.inputs: Iterator[dict[str, np.ndarray]] = iter(inputs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next inputs, None at the end."""
        return next(self.inputs, None)


def record(
    policies: Iterable[DeployedPolicy], observations: list[Observation], seed: int
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return the inputs of every graph while policies act on an unbroken episode of one row.

    One policy runs whole and one stage by stage: together they run every graph.
    """
    inputs: dict[str, list[dict[str, np.ndarray]]] = {}
    for policy in policies:
        recorder = RecordingRunner(policy.runner, keep=None)
        policy.runner = recorder
        rng, state = np.random.default_rng(seed), policy.initial_state(1)
        for obs in observations:
            noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
            _, state = policy.act(obs, state, noise)
        policy.runner = recorder.runner
        inputs |= {name: [call[0] for call in calls] for name, calls in recorder.calls.items()}
    return inputs


def quantize(path: Path, inputs: list[dict[str, np.ndarray]], rows: int) -> int:
    """Quantise a graph to eight bits; return the number of quantised operators.

    Args:
        path: The graph; left as it is if it has neither convolution nor large matrix.
        inputs: Recorded inputs, for the range of its activations.
        rows: Its batch. With several rows large matrices stay FP32: all rows would share one
            scale, and the decision for an arm would depend on the others.
    """
    count = sum(node.op_type in QUANTIZED for node in onnx.load(path).graph.node)
    if count:
        new = path.with_suffix(".int8")
        root = logging.getLogger()  # the library warns through it
        level = root.level
        root.setLevel(logging.ERROR)
        quantization.quantize_static(
            str(path), str(new), _Reader(inputs[::EVERY]),
            quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8, op_types_to_quantize=list(QUANTIZED),
        )  # fmt: skip
        root.setLevel(level)
        new.replace(path)
    return count + (_quantize_matrices(path) if rows == 1 else 0)


def _quantize_matrices(path: Path) -> int:
    """Quantise the large matrices of a graph; return the number of products that use them.

    Each column has a scale. The other factor is rounded to eight bits at run time, so there is
    nothing to calibrate: x W = s_x s_W (x / s_x) (W / s_W), with an integer product.
    """
    model = constant_folding.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes, count, made = [], 0, set[str]()
    for node in model.graph.node:
        weight = constants.get(node.input[1]) if node.op_type in PRODUCTS else None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        columns = bool(attributes.pop("transB", 0))
        plain = attributes.pop("alpha", 1.0) == attributes.pop("beta", 1.0) == 1.0
        plain = plain and not any(attributes.values())
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
        constant_folding.save(model, nodes, path)
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
    """Return the integer product for one with a large matrix, as runtimes expect the pattern."""
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
