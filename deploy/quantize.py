"""Eight-bit convolutions: explicit Q/DQ in the graphs, calibrated on recorded observations.

Of a decision on a CPU the convolutions take most, and they lose least. Products with matrices stay
in FP32: at one row they are not faster in eight bits, and the layer that gathers keypoints loses a
tenth. So does all of memory, whose merges would part.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization

from deploy.policy import DeployedPolicy, Engine
from vla.contracts.types import Observation

QUANTIZED = ("Conv",)
"""Operators with numbers of eight bits."""
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


def quantize(path: Path, inputs: list[dict[str, np.ndarray]]) -> int:
    """Replace a graph by one with eight-bit convolutions; return how many there are.

    Args:
        path: The graph; left as it is if it has no convolution.
        inputs: What it was given; extremes of its numbers come from these.
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
    return count
