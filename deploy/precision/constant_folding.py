"""Constant folding before a graph is rewritten: a slice of a learned matrix becomes a matrix."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnxruntime


def load(path: Path) -> onnx.ModelProto:
    """Return a graph in which operators on constants alone are computed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    folded = path.with_suffix(".folded")
    options.optimized_model_filepath = str(folded)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    try:
        return onnx.load(folded)
    finally:
        folded.unlink()


def save(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], path: Path) -> None:
    """Write a graph with other operators, and the constants that they use."""
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    del model.graph.value_info[:]  # shapes inferred for the old operators
    onnx.checker.check_model(model)
    onnx.save(model, path)
