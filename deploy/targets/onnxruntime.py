"""ONNX Runtime: on the CPU by default, on a GPU where its providers are installed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime

from deploy.artefact import Artefact
from vla.contracts.config import PluginConfig, check_least

CPU = "CPUExecutionProvider"


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

    def open(self, artefact: Artefact) -> "Engine":
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

    def __init__(self, config: Config, artefact: Artefact) -> None:
        self.config, self.artefact = config, artefact
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        if graph not in self.sessions:
            self.sessions[graph] = self._session(graph)
        names = [port.name for port in self.artefact.manifest.graphs[graph].outputs]
        found = self.sessions[graph].run(names, dict(inputs))
        return dict(zip(names, found, strict=True))

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.config.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        path = self.artefact.path(graph)
        try:
            session = onnxruntime.InferenceSession(
                str(path), options, providers=list(self.config.providers)
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
