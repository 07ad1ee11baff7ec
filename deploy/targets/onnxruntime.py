"""ONNX Runtime: on the CPU by default, on a GPU where its providers are installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from deploy.artefact import Exported, Graph
from vla.contracts.config import PluginConfig, check_least

CPU = "CPUExecutionProvider"
CUDA = "cuda"
"""Where what a GPU's providers compute on lies."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of ONNX Runtime."""

    threads: int = 1
    """CPU threads of a graph."""
    providers: tuple[str, ...] = (CPU,)
    """Who runs it, in order; all must be installed, and nobody else takes their place."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, threads=1)

    def open(self, artefact: Exported) -> "Engine":
        """Return an engine for the graphs of an artefact.

        Raises:
            ValueError: a provider is not installed.
        """
        known = onnxruntime.get_available_providers()
        missing = [name for name in self.providers if name not in known]
        if missing or not self.providers:
            raise ValueError(
                f"target.providers: got {', '.join(self.providers) or 'none'}; installed are "
                f"{', '.join(known)}"
            )
        return Engine(self, artefact)


class Engine:
    """Satisfies `deploy.policy.Engine`; a graph is loaded when it is first run."""

    def __init__(self, config: Config, artefact: Exported) -> None:
        self.config, self.artefact = config, artefact
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}
        self.bound: dict[str, Bound] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name.

        Raises:
            ValueError: ONNX Runtime cannot load or run it.
        """
        if graph not in self.sessions:
            self.sessions[graph] = self._session(graph)
            # On a CPU nothing is copied that a binding would save, and none is faster.
            if self.config.providers[0] != CPU:
                described = self.artefact.manifest.graphs[graph]
                self.bound[graph] = Bound(self.sessions[graph], described, CUDA)
        names = [port.name for port in self.artefact.manifest.graphs[graph].outputs]
        try:
            if graph in self.bound:
                return self.bound[graph].run(inputs)
            found = self.sessions[graph].run(names, dict(inputs))
        except Exception as error:  # the library's own errors derive from Exception alone
            path = self.artefact.path(graph)
            raise ValueError(f"{path}: ONNX Runtime does not run it: {error}") from error
        return dict(zip(names, found, strict=True))

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.config.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        path = self.artefact.path(graph)
        model: str | bytes = str(path)
        precision = getattr(self.artefact.manifest, "precision", "fp32")  # a critic is FP32
        if precision == "bf16" and self.config.providers[0] == CPU:
            model = _widened(path)
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=list(self.config.providers)
            )
        except Exception as error:  # the library's own errors derive from Exception alone
            raise ValueError(f"{path}: ONNX Runtime refuses it: {error}; export again") from error
        got = session.get_providers()
        if got[0] != self.config.providers[0]:
            raise ValueError(
                f"{path}: asked for {self.config.providers[0]}, ONNX Runtime would use {got[0]}; "
                "install what that needs, or name another with --target.providers"
            )
        return session


class Bound:
    """A session whose inputs keep their places in a device's memory; outputs come back once.

    Args:
        session: Of a graph.
        graph: What it takes and gives.
        device: What ONNX Runtime calls the device.
    """

    def __init__(self, session: onnxruntime.InferenceSession, graph: Graph, device: str) -> None:
        self.session, self.graph, self.device = session, graph, device
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: dict[str, Any] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name, on the host."""
        given = {p.name: np.ascontiguousarray(inputs[p.name]) for p in self.graph.inputs}
        shapes = {name: value.shape for name, value in given.items()}
        if shapes == self.shapes:
            for name, value in given.items():
                self.inputs[name].update_inplace(value)
        else:
            self._bind(given)
            self.shapes = shapes
        self.session.run_with_iobinding(self.binding)
        names = [port.name for port in self.graph.outputs]
        return dict(zip(names, self.binding.copy_outputs_to_cpu(), strict=True))

    def _bind(self, given: dict[str, np.ndarray]) -> None:
        self.binding = self.session.io_binding()
        for name, value in given.items():
            placed = onnxruntime.OrtValue.ortvalue_from_numpy(value, self.device, 0)
            self.inputs[name] = placed
            self.binding.bind_ortvalue_input(name, placed)
        for port in self.graph.outputs:
            self.binding.bind_output(port.name, self.device, 0)


def _widened(path: Path) -> bytes:
    """Return a graph of bf16 that computes in FP32, for a CPU, which has no operators of bf16."""
    try:
        from deploy import precision
    except ImportError as error:
        raise ValueError(
            f"{path}: bf16 runs on a CPU by being rewritten ({error}); pip install onnx ml_dtypes, "
            "or export with --precision fp32"
        ) from error
    return precision.widened(path)
