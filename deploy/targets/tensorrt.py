"""TensorRT 10 and 11: engines built from the graphs, kept in a cache, run on the first GPU.

`tensorrt` and CUDA's binding are imported when a policy is opened. Engines are strongly typed: the
precision is that of the graphs.
"""

import importlib
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Artefact, Graph, Port
from deploy.targets import _engine_cache
from deploy.targets._cuda import Device
from deploy.targets._engine_cache import Key
from vla.contracts.config import PluginConfig, validate_min

MAJORS = (10, 11)
"""Versions whose interface this is."""
MAX_OPTIMIZATION_LEVEL = 5
"""Highest optimization level of the builder."""
TYPES = {"float32": "FLOAT", "int64": "INT64", "uint8": "UINT8", "bool": "BOOL"}
"""What TensorRT calls the types of ports."""
INSTEAD = "or name another target with --targets"
Shapes = dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of TensorRT."""

    threads: int = 1
    """CPU threads that build an engine."""
    builder_optimization_level: int = 3
    """Optimization level of the builder, 0 to 5: a higher one searches longer."""
    workspace_mib: int = 1024
    """Most scratch memory of an engine."""
    tf32: bool = False
    """Whether products may have ten bits of mantissa; `vla verify-export` asks for more."""
    use_cuda_graph: bool = True
    """Whether runs of the same shapes are launched as one CUDA graph, from the second on."""
    cache: Path = field(default_factory=_engine_cache.default_folder)
    """Folder of built engines, which nobody else may write."""

    def __post_init__(self) -> None:
        validate_min(self, threads=1, builder_optimization_level=0, workspace_mib=1)
        if self.builder_optimization_level > MAX_OPTIMIZATION_LEVEL:
            raise ValueError(
                f"builder_optimization_level: got {self.builder_optimization_level}, expected at "
                f"most {MAX_OPTIMIZATION_LEVEL}"
            )

    def open(self, artefact: Artefact) -> "TensorRTRunner":
        """Return a runner of the graphs of an artefact; an engine is built at its first run.

        Raises:
            ValueError: TensorRT, its binding or a GPU is missing, or the graphs are not for it.
        """
        if artefact.manifest.precision == "int8":
            raise ValueError(
                f"{artefact.folder}: precision {artefact.manifest.precision} is made for CPUs "
                "(unsigned bytes, which TensorRT does not take); export with --precision fp16, "
                + INSTEAD
            )
        return TensorRTRunner(self, artefact, _library(), Device())


class TensorRTRunner:
    """Satisfies `deploy.runtime.policy.GraphRunner`; outputs lie in buffers that are reused."""

    def __init__(self, config: Config, artefact: Artefact, library: Any, device: Device) -> None:
        self.config, self.artefact = config, artefact
        self.library, self.device = library, device
        self.folder = _engine_cache.prepare(config.cache)
        self.log = _log(library)
        self.runtime = library.Runtime(self.log)
        self.bound: dict[str, _BoundEngine] = {}
        self.built: dict[str, bool] = {}
        self.load_s: dict[str, float] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name, once the GPU is done.

        Raises:
            ValueError: TensorRT cannot build or run it, or an input does not fit.
        """
        if graph not in self.bound:
            begin = time.perf_counter()
            self.bound[graph] = self._load(graph)
            self.load_s[graph] = time.perf_counter() - begin
        return self.bound[graph].run(inputs)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return build and load results by graph, as JSON types, for `vla engines`."""
        return {
            name: {
                "built": self.built[name], "load_s": self.load_s[name],
                "device_bytes": bound.device_bytes, "cuda_graph": bound.cuda_graph is not None,
            }
            for name, bound in self.bound.items()
        }  # fmt: skip

    def _load(self, graph: str) -> "_BoundEngine":
        path, described = self.artefact.path(graph), self.artefact.manifest.graphs[graph]
        model = self.artefact.graph_bytes(graph)
        shapes = profile(described, usual_tokens(self.artefact))
        key = self._key(described, shapes)

        def build() -> bytes:
            return self._build(path, model, shapes)

        for _ in range(2):  # the second time it is built again
            data, self.built[graph] = _engine_cache.get_or_build(self.folder, key, build)
            engine = self.runtime.deserialize_cuda_engine(data)
            if engine is not None:
                return _BoundEngine(self, engine, described, path)
            _engine_cache.discard(self.folder, key)
        raise ValueError(
            f"{path}: TensorRT does not load what it built{self.log.suffix()}; {INSTEAD}"
        )

    def _key(self, graph: Graph, shapes: Shapes) -> Key:
        config = self.config
        return Key(
            onnx=graph.sha256, tensorrt=self.library.__version__, gpu=self.device.name,
            capability=self.device.capability, system=f"{platform.system()} {platform.machine()}",
            precision=self.artefact.manifest.precision, profile=shapes,
            flags=("strongly typed", f"tf32 {config.tf32}",
                   f"optimization level {config.builder_optimization_level}",
                   f"workspace {config.workspace_mib} MiB"),
        )  # fmt: skip

    def _build(self, path: Path, model: bytes, shapes: Shapes) -> bytes:
        """Return a serialised engine; timings of its kernels are kept for the next one."""
        trt, config = self.library, self.config
        builder = trt.Builder(self.log)
        builder.max_threads = config.threads
        flags = 0  # from 11 on every network is strongly typed
        if _major(trt) == MAJORS[0]:
            flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        parser = trt.OnnxParser(network, self.log)
        if not parser.parse(model):
            errors = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
            raise ValueError(
                f"{path}: TensorRT does not read it: {errors}; export again, {INSTEAD}"
            )
        settings = builder.create_builder_config()
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, config.workspace_mib << 20)
        settings.builder_optimization_level = config.builder_optimization_level
        if not config.tf32:
            settings.clear_flag(trt.BuilderFlag.TF32)
        if shapes:
            ranges = builder.create_optimization_profile()
            for name, (least, usual, most) in shapes.items():
                ranges.set_shape(name, least, usual, most)
            settings.add_optimization_profile(ranges)
        timed = {  # what timings of kernels depend on
            "kind": "timing cache", "tensorrt": trt.__version__, "gpu": self.device.name,
            "capability": list(self.device.capability),
        }  # fmt: skip
        timings = settings.create_timing_cache(_engine_cache.load(self.folder, timed))
        if not settings.set_timing_cache(timings, ignore_mismatch=False):
            settings.set_timing_cache(settings.create_timing_cache(b""), ignore_mismatch=False)
        plan = builder.build_serialized_network(network, settings)
        if plan is None:
            raise ValueError(
                f"{path}: TensorRT {trt.__version__} builds no engine{self.log.suffix()}; {INSTEAD}"
            )
        measured = settings.get_timing_cache()
        _engine_cache.store(self.folder, timed, bytes(measured.serialize()))
        return bytes(plan)


class _BoundEngine:
    """One graph's engine with its buffers, which keep their addresses."""

    def __init__(self, owner: TensorRTRunner, engine: Any, graph: Graph, path: Path) -> None:
        self.owner, self.device, self.graph, self.path = owner, owner.device, graph, path
        self._check(engine)
        self.context = engine.create_execution_context()
        if self.context is None:
            raise ValueError(
                f"{path}: no memory to run it on the GPU{owner.log.suffix()}; free some, {INSTEAD}"
            )
        self.device_bytes = int(getattr(engine, "device_memory_size_v2", 0))
        ports = (*graph.inputs, *graph.outputs)
        self.buffers = {p.name: self.device.buffer(_bytes(p, largest(p))) for p in ports}
        for port in ports:
            self.context.set_tensor_address(port.tensor, self.buffers[port.name].device_address)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.views: dict[str, np.ndarray] = {}
        self.runs = 0
        self.cuda_graph: Any = None
        self.use_cuda_graph = owner.config.use_cuda_graph

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs; see `GraphRunner.run`."""
        shapes = {port.name: inputs[port.name].shape for port in self.graph.inputs}
        if shapes != self.shapes:
            self._shape(shapes)
        for port in self.graph.inputs:
            value = inputs[port.name]
            if value.dtype != port.dtype:
                raise ValueError(f"{port.name}: got {value.dtype}, expected {port.dtype}")
            self.views[port.name][...] = value
        # TensorRT allocates during the first run of a shape, so that run cannot be recorded.
        if self.runs == 1 and self.use_cuda_graph:
            self._record()
        if self.cuda_graph is None:
            self._enqueue()
        else:
            self.device.launch(self.cuda_graph)
        self.device.synchronize()
        self.runs += 1
        return {port.name: self.views[port.name] for port in self.graph.outputs}

    def _record(self) -> None:
        try:
            self.cuda_graph = self.device.record(self._enqueue)
        except ValueError:  # some layers wait for the host; they run as they are
            self.use_cuda_graph = False

    def _enqueue(self) -> None:
        """Put copies and the network into the stream."""
        for port in self.graph.inputs:
            self.device.upload(self.buffers[port.name], self.views[port.name].nbytes)
        if not self.context.execute_async_v3(int(self.device.stream)):
            raise ValueError(f"{self.path}: TensorRT does not run it{self.owner.log.suffix()}")
        for port in self.graph.outputs:
            self.device.download(self.buffers[port.name], self.views[port.name].nbytes)

    def _shape(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Get ready for inputs of other shapes; what was recorded was for the old ones."""
        for port in self.graph.inputs:
            _check_shape(port, shapes[port.name])
            if not self.context.set_input_shape(port.tensor, shapes[port.name]):
                raise ValueError(f"{port.name}: {self.path} does not take {shapes[port.name]}")
        if self.cuda_graph is not None:
            self.device.forget(self.cuda_graph)
        self.shapes, self.runs, self.cuda_graph = shapes, 0, None
        sizes = {p.name: tuple(self.context.get_tensor_shape(p.tensor)) for p in self.graph.outputs}
        for port in (*self.graph.inputs, *self.graph.outputs):
            shape = {**shapes, **sizes}[port.name]
            part = self.buffers[port.name].host[: _bytes(port, shape)]
            self.views[port.name] = part.view(port.dtype).reshape(shape)

    def _check(self, engine: Any) -> None:
        """Raise ValueError unless an engine takes and gives what the manifest says."""
        trt = self.owner.library
        names = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
        sides = ((self.graph.inputs, "INPUT"), (self.graph.outputs, "OUTPUT"))
        for ports, side in sides:
            for port in ports:
                fits = port.tensor in names and (
                    engine.get_tensor_mode(port.tensor) == getattr(trt.TensorIOMode, side)
                    and engine.get_tensor_location(port.tensor) == trt.TensorLocation.DEVICE
                    and engine.get_tensor_dtype(port.tensor)
                    == getattr(trt.DataType, TYPES[port.dtype])
                )
                if not fits:
                    raise ValueError(
                        f"{self.path}: its engine has no {side.lower()} {port.tensor} of "
                        f"{port.dtype}; export again, {INSTEAD}"
                    )


def profile(graph: Graph, tokens: int) -> Shapes:
    """Return smallest, usual and largest shape of every input with an axis of variable length."""
    return {
        port.tensor: (_sized(port, 1), _sized(port, tokens), largest(port))
        for port in graph.inputs
        if any(isinstance(n, str) for n in port.shape)
    }


def usual_tokens(artefact: Artefact) -> int:
    """Return the tokens of the longest instruction it was trained on."""
    encode = artefact.tokenizer.encode
    lengths = [len(encode(line).ids) for line in artefact.manifest.instructions]
    return min(max([1, *lengths]), artefacts.MAX_LENGTH)


def largest(port: Port) -> tuple[int, ...]:
    """Return the largest shape of a port."""
    return _sized(port, artefacts.MAX_LENGTH)


def _sized(port: Port, length: int) -> tuple[int, ...]:
    return tuple(length if isinstance(n, str) else n for n in port.shape)


def _bytes(port: Port, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(port.dtype).itemsize


def _check_shape(port: Port, shape: tuple[int, ...]) -> None:
    ranks = len(shape) == len(port.shape)
    if not ranks or any(
        not 1 <= got <= artefacts.MAX_LENGTH if isinstance(want, str) else got != want
        for want, got in zip(port.shape, shape, strict=True)
    ):
        raise ValueError(
            f"{port.name}: got {shape}, expected {port.shape} with at most {artefacts.MAX_LENGTH} "
            "where it is named; shorten the instruction"
        )


def _library() -> Any:
    try:
        library = importlib.import_module("tensorrt")
    except ModuleNotFoundError as error:
        raise ValueError(
            "TensorRT is not installed; on a Jetson it comes with JetPack (docs/jetson.md), "
            f"elsewhere pip install tensorrt, {INSTEAD}"
        ) from error
    if _major(library) not in MAJORS:
        raise ValueError(
            f"TensorRT {library.__version__} is installed, expected 10 or 11; install one of them, "
            + INSTEAD
        )
    return library


def _major(library: Any) -> int:
    return int(library.__version__.split(".")[0])


def _log(library: Any) -> Any:
    """Return a logger that remembers what went wrong; its base exists only in the library."""

    class Log(library.ILogger):
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.latest = ""

        def log(self, severity: Any, msg: str) -> None:
            if severity in (library.ILogger.INTERNAL_ERROR, library.ILogger.ERROR):
                self.latest = " ".join(msg.split())

        def suffix(self) -> str:
            """Return the latest error as the end of a sentence, "" if there was none."""
            return f": {self.latest}" if self.latest else ""

    return Log()
