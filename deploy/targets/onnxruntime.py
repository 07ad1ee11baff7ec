"""ONNX Runtime: on the CPU by default, on a GPU where its providers are installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from deploy.runtime.artefact import ExportedGraphs, Graph
from vla.contracts.config import PluginConfig, validate_min

CPU = "CPUExecutionProvider"
CUDA = "cuda"
"""Device that holds inputs and outputs of a GPU's providers."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of ONNX Runtime."""

    threads: int = 1
    """CPU threads of a graph."""
    providers: tuple[str, ...] = (CPU,)
    """Execution providers in order of preference; all must be installed, and no other is used."""

    def __post_init__(self) -> None:
        validate_min(self, threads=1)

    def open(self, artefact: ExportedGraphs) -> "OnnxRunner":
        """Return a runner of the graphs of an artefact.

        Raises:
            ValueError: a provider is not installed.
        """
        installed = onnxruntime.get_available_providers()
        missing = [name for name in self.providers if name not in installed]
        if missing or not self.providers:
            raise ValueError(
                f"providers: got {', '.join(self.providers) or 'none'}; installed are "
                f"{', '.join(installed)}"
            )
        return OnnxRunner(self, artefact)


class OnnxRunner:
    """Satisfies `deploy.runtime.policy.GraphRunner`; a graph is loaded when it is first run.

    Its file is read and its hash compared then: what runs is what the manifest describes.
    """

    def __init__(self, config: Config, artefact: ExportedGraphs) -> None:
        self.config, self.artefact = config, artefact
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}
        self.bound: dict[str, BoundSession] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name.

        Raises:
            ValueError: ONNX Runtime cannot load or run it.
        """
        described = self.artefact.manifest.graphs[graph]
        if graph not in self.sessions:
            self.sessions[graph] = self._session(graph)
            # On a CPU a binding saves no copy and is not faster.
            if self.config.providers[0] != CPU:
                self.bound[graph] = BoundSession(self.sessions[graph], described, CUDA)
        try:
            if graph in self.bound:
                return self.bound[graph].run(inputs)
            feed = {port.tensor: inputs[port.name] for port in described.inputs}
            outputs = self.sessions[graph].run([port.tensor for port in described.outputs], feed)
        except Exception as error:  # the library's own errors derive from Exception alone
            path = self.artefact.path(graph)
            raise ValueError(f"{path}: ONNX Runtime does not run it: {error}") from error
        return {port.name: x for port, x in zip(described.outputs, outputs, strict=True)}

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.config.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        path = self.artefact.path(graph)
        precision = getattr(self.artefact.manifest, "precision", "fp32")  # a reward model is FP32
        if precision == "nvfp4":
            raise ValueError(
                f"{path}: ONNX Runtime has no operators of FP4, which is for TensorRT; export with "
                "another --precision to run it here"
            )
        model = self.artefact.graph_bytes(graph)
        if precision == "bf16" and self.config.providers[0] == CPU:
            model = _bf16_as_fp32(path, model)
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=list(self.config.providers)
            )
        except Exception as error:  # the library's own errors derive from Exception alone
            raise ValueError(f"{path}: ONNX Runtime refuses it: {error}; export again") from error
        # It keeps the bytes, twice the weights, to fall back on other providers, which we refuse.
        session.disable_fallback()
        session._model_bytes = None  # noqa: SLF001
        got = session.get_providers()
        if got[0] != self.config.providers[0]:
            raise ValueError(
                f"{path}: asked for {self.config.providers[0]}, ONNX Runtime would use {got[0]}; "
                "install what that needs, or name another target with --targets"
            )
        return session


class BoundSession:
    """A session whose inputs stay in fixed places of a device's memory.

    Args:
        session: Session of a graph.
        graph: Its description.
        device: ONNX Runtime's name of the device.
    """

    def __init__(self, session: onnxruntime.InferenceSession, graph: Graph, device: str) -> None:
        self.session, self.graph, self.device = session, graph, device
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: dict[str, Any] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name, on the host."""
        feed = {p.tensor: np.ascontiguousarray(inputs[p.name]) for p in self.graph.inputs}
        shapes = {name: value.shape for name, value in feed.items()}
        if shapes == self.shapes:
            for name, value in feed.items():
                self.inputs[name].update_inplace(value)
        else:
            self._bind(feed)
            self.shapes = shapes
        self.session.run_with_iobinding(self.binding)
        names = [port.name for port in self.graph.outputs]
        return dict(zip(names, self.binding.copy_outputs_to_cpu(), strict=True))

    def _bind(self, feed: dict[str, np.ndarray]) -> None:
        self.binding = self.session.io_binding()
        for name, value in feed.items():
            placed = onnxruntime.OrtValue.ortvalue_from_numpy(value, self.device, 0)
            self.inputs[name] = placed
            self.binding.bind_ortvalue_input(name, placed)
        for port in self.graph.outputs:
            self.binding.bind_output(port.tensor, self.device, 0)


def _bf16_as_fp32(path: Path, model: bytes) -> bytes:
    """Return a bf16 graph rewritten to FP32, for a CPU, which has no operators of bf16."""
    try:
        from deploy.precision import sixteen_bit
    except ImportError as error:
        raise ValueError(
            f"{path}: bf16 runs on a CPU by being rewritten ({error}); pip install onnx ml_dtypes, "
            "or export with --precision fp32"
        ) from error
    return sixteen_bit.bf16_as_fp32(model)
