"""Graphs whose constants are computed, to be rewritten: a part of a learned matrix is a matrix."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnxruntime


def load(path: Path) -> onnx.ModelProto:
    """Return a graph without operators that have but constants to work on."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    made = path.with_suffix(".folded")
    options.optimized_model_filepath = str(made)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    try:
        return onnx.load(made)
    finally:
        made.unlink()


def save(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], path: Path) -> None:
    """Write a graph with other operators, and of its constants those they use."""
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [one for one in model.graph.initializer if one.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    del model.graph.value_info[:]  # what was inferred of the operators before
    onnx.checker.check_model(model)
    onnx.save(model, path)
