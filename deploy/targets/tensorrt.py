"""TensorRT 10 and 11: engines built from the graphs, kept in a cache, run on the first GPU.

`tensorrt` and CUDA's binding are imported when a policy is opened. Engines are strongly typed: the
precision is that of the graphs.
"""

import hashlib
import importlib
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy import artefact as artefacts
from deploy import engine_cache
from deploy.artefact import Artefact, Graph, Port
from deploy.cuda import Device
from deploy.engine_cache import Key
from vla.contracts.config import PluginConfig, check_least

MAJORS = (10, 11)
"""Versions whose interface this is."""
HARDEST = 5
"""Most effort of the builder."""
TYPES = {"float32": "FLOAT", "int64": "INT64", "uint8": "UINT8", "bool": "BOOL"}
"""What TensorRT calls the types of ports."""
INSTEAD = "or name another target with --targets"
Shapes = dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of TensorRT."""

    threads: int = 1
    """CPU threads that build an engine."""
    effort: int = 3
    """How long the builder searches, 0 to 5."""
    workspace_mib: int = 1024
    """Most scratch memory of an engine."""
    tf32: bool = False
    """Whether products may have ten bits of mantissa; `vla parity` asks for more."""
    record: bool = True
    """Whether runs of the same shapes are launched as one CUDA graph, from the second on."""
    cache: Path = field(default_factory=engine_cache.default_folder)
    """Folder of built engines, which nobody else may write."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, threads=1, effort=0, workspace_mib=1)
        if self.effort > HARDEST:
            raise ValueError(f"effort: got {self.effort}, expected at most {HARDEST}")

    def open(self, artefact: Artefact) -> "Engine":
        """Return an engine for the graphs of an artefact; each is built when it is first run.

        Raises:
            ValueError: TensorRT, its binding or a GPU is missing, or the graphs are not for it.
        """
        if artefact.manifest.precision == "int8":
            raise ValueError(
                f"{artefact.folder}: precision {artefact.manifest.precision} is made for CPUs "
                "(unsigned bytes, which TensorRT does not take); export with --precision fp16, "
                + INSTEAD
            )
        return Engine(self, artefact, _library(), Device())


class Engine:
    """Satisfies `deploy.policy.Engine`; what it gives lies in buffers of its own."""

    def __init__(self, config: Config, artefact: Artefact, library: Any, device: Device) -> None:
        self.config, self.artefact = config, artefact
        self.library, self.device = library, device
        self.folder = engine_cache.prepare(config.cache)
        self.log = _log(library)
        self.runtime = library.Runtime(self.log)
        self.bound: dict[str, _Bound] = {}
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

    def told(self) -> dict[str, dict[str, Any]]:
        """Return by graph what `vla engines` shows, as JSON types."""
        return {
            name: {
                "built": self.built[name], "load_s": self.load_s[name],
                "device_bytes": bound.device_bytes, "recorded": bound.recorded is not None,
            }
            for name, bound in self.bound.items()
        }  # fmt: skip

    def _load(self, graph: str) -> "_Bound":
        path, described = self.artefact.path(graph), self.artefact.manifest.graphs[graph]
        model = path.read_bytes()
        if hashlib.sha256(model).hexdigest() != described.sha256:
            raise ValueError(f"{path}: was changed since it was opened; export again")
        shapes = profile(described, usual_words(self.artefact))
        key = self._key(described, shapes)

        def build() -> bytes:
            return self._build(path, model, shapes)

        for _ in range(2):  # the second time anew
            data, self.built[graph] = engine_cache.obtain(self.folder, key, build)
            engine = self.runtime.deserialize_cuda_engine(data)
            if engine is not None:
                return _Bound(self, engine, described, path)
            engine_cache.discard(self.folder, key)
        raise ValueError(
            f"{path}: TensorRT does not load what it built{self.log.said()}; {INSTEAD}"
        )

    def _key(self, graph: Graph, shapes: Shapes) -> Key:
        mine = self.config
        return Key(
            onnx=graph.sha256, tensorrt=self.library.__version__, gpu=self.device.name,
            capability=self.device.capability, system=f"{platform.system()} {platform.machine()}",
            precision=self.artefact.manifest.precision, profile=shapes,
            flags=("strongly typed", f"tf32 {mine.tf32}", f"effort {mine.effort}",
                   f"workspace {mine.workspace_mib} MiB"),
        )  # fmt: skip

    def _build(self, path: Path, model: bytes, shapes: Shapes) -> bytes:
        """Return a serialised engine; timings of its kernels are kept for the next one."""
        trt, mine = self.library, self.config
        builder = trt.Builder(self.log)
        builder.max_threads = mine.threads
        flags = 0  # from 11 on every network is strongly typed
        if _major(trt) == MAJORS[0]:
            flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        parser = trt.OnnxParser(network, self.log)
        if not parser.parse(model):
            said = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
            raise ValueError(f"{path}: TensorRT does not read it: {said}; export again, {INSTEAD}")
        settings = builder.create_builder_config()
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, mine.workspace_mib << 20)
        settings.builder_optimization_level = mine.effort
        if not mine.tf32:
            settings.clear_flag(trt.BuilderFlag.TF32)
        if shapes:
            ranges = builder.create_optimization_profile()
            for name, (least, usual, most) in shapes.items():
                ranges.set_shape(name, least, usual, most)
            settings.add_optimization_profile(ranges)
        timed = self._timings()
        timings = settings.create_timing_cache(engine_cache.kept(self.folder, timed))
        if not settings.set_timing_cache(timings, ignore_mismatch=False):
            settings.set_timing_cache(settings.create_timing_cache(b""), ignore_mismatch=False)
        plan = builder.build_serialized_network(network, settings)
        if plan is None:
            raise ValueError(
                f"{path}: TensorRT {trt.__version__} builds no engine{self.log.said()}; {INSTEAD}"
            )
        kept = settings.get_timing_cache()
        engine_cache.keep(self.folder, timed, bytes(kept.serialize()))
        return bytes(plan)

    def _timings(self) -> dict[str, Any]:
        """Return what timings of kernels depend on."""
        return {
            "kind": "timing cache", "tensorrt": self.library.__version__, "gpu": self.device.name,
            "capability": list(self.device.capability),
        }  # fmt: skip


class _Bound:
    """One graph's engine with its buffers, which keep their addresses."""

    def __init__(self, owner: Engine, engine: Any, graph: Graph, path: Path) -> None:
        self.owner, self.device, self.graph, self.path = owner, owner.device, graph, path
        self._check(engine)
        self.context = engine.create_execution_context()
        if self.context is None:
            raise ValueError(
                f"{path}: no memory to run it on the GPU{owner.log.said()}; free some, {INSTEAD}"
            )
        self.device_bytes = int(getattr(engine, "device_memory_size_v2", 0))
        ports = (*graph.inputs, *graph.outputs)
        self.buffers = {p.name: self.device.buffer(_bytes(p, largest(p))) for p in ports}
        for name, buffer in self.buffers.items():
            self.context.set_tensor_address(name, buffer.device_address)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.views: dict[str, np.ndarray] = {}
        self.runs = 0
        self.recorded: Any = None
        self.recordable = owner.config.record

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs; see `Engine.run`."""
        shapes = {port.name: inputs[port.name].shape for port in self.graph.inputs}
        if shapes != self.shapes:
            self._shape(shapes)
        for port in self.graph.inputs:
            given = inputs[port.name]
            if given.dtype != port.dtype:
                raise ValueError(f"{port.name}: got {given.dtype}, expected {port.dtype}")
            self.views[port.name][...] = given
        # The first run of a shape is how TensorRT gets ready for it; it cannot be recorded.
        if self.runs == 1 and self.recordable:
            self._record()
        if self.recorded is None:
            self._enqueue()
        else:
            self.device.launch(self.recorded)
        self.device.synchronise()
        self.runs += 1
        return {port.name: self.views[port.name] for port in self.graph.outputs}

    def _record(self) -> None:
        try:
            self.recorded = self.device.record(self._enqueue)
        except ValueError:  # some layers wait for the host; they run as they are
            self.recordable = False

    def _enqueue(self) -> None:
        """Put copies and the network into the stream."""
        for port in self.graph.inputs:
            self.device.upload(self.buffers[port.name], self.views[port.name].nbytes)
        if not self.context.execute_async_v3(int(self.device.stream)):
            raise ValueError(f"{self.path}: TensorRT does not run it{self.owner.log.said()}")
        for port in self.graph.outputs:
            self.device.download(self.buffers[port.name], self.views[port.name].nbytes)

    def _shape(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Get ready for inputs of other shapes; what was recorded was for the old ones."""
        for port in self.graph.inputs:
            _check_shape(port, shapes[port.name])
            if not self.context.set_input_shape(port.name, shapes[port.name]):
                raise ValueError(f"{port.name}: {self.path} does not take {shapes[port.name]}")
        if self.recorded is not None:
            self.device.forget(self.recorded)
        self.shapes, self.runs, self.recorded = shapes, 0, None
        known = {p.name: tuple(self.context.get_tensor_shape(p.name)) for p in self.graph.outputs}
        for port in (*self.graph.inputs, *self.graph.outputs):
            shape = {**shapes, **known}[port.name]
            part = self.buffers[port.name].host[: _bytes(port, shape)]
            self.views[port.name] = part.view(port.dtype).reshape(shape)

    def _check(self, engine: Any) -> None:
        """Raise ValueError unless an engine takes and gives what the manifest says."""
        trt = self.owner.library
        found = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
        sides = ((self.graph.inputs, "INPUT"), (self.graph.outputs, "OUTPUT"))
        for ports, side in sides:
            for port in ports:
                fits = port.name in found and (
                    engine.get_tensor_mode(port.name) == getattr(trt.TensorIOMode, side)
                    and engine.get_tensor_location(port.name) == trt.TensorLocation.DEVICE
                    and engine.get_tensor_dtype(port.name)
                    == getattr(trt.DataType, TYPES[port.dtype])
                )
                if not fits:
                    raise ValueError(
                        f"{self.path}: its engine has no {side.lower()} {port.name} of "
                        f"{port.dtype}; export again, {INSTEAD}"
                    )


def profile(graph: Graph, words: int) -> Shapes:
    """Return least, usual and largest shape of every input with an axis that may differ."""
    return {
        port.name: (_sized(port, 1), _sized(port, words), largest(port))
        for port in graph.inputs
        if any(isinstance(n, str) for n in port.shape)
    }


def usual_words(artefact: Artefact) -> int:
    """Return the tokens of the longest instruction it was trained on."""
    encode = artefact.tokenizer.encode
    lengths = [len(encode(line).ids) for line in artefact.manifest.instructions]
    return min(max([1, *lengths]), artefacts.LONGEST)


def largest(port: Port) -> tuple[int, ...]:
    """Return the largest shape of a port."""
    return _sized(port, artefacts.LONGEST)


def _sized(port: Port, length: int) -> tuple[int, ...]:
    return tuple(length if isinstance(n, str) else n for n in port.shape)


def _bytes(port: Port, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(port.dtype).itemsize


def _check_shape(port: Port, shape: tuple[int, ...]) -> None:
    ranks = len(shape) == len(port.shape)
    if not ranks or any(
        not 1 <= got <= artefacts.LONGEST if isinstance(want, str) else got != want
        for want, got in zip(port.shape, shape, strict=True)
    ):
        raise ValueError(
            f"{port.name}: got {shape}, expected {port.shape} with at most {artefacts.LONGEST} "
            "where it is named; shorten the instruction"
        )


def _library() -> Any:
    """Return the `tensorrt` package.

    Raises:
        ValueError: it is not installed, or is of a version with another interface.
    """
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

        def said(self) -> str:
            """Return the latest error as the end of a sentence, "" if there was none."""
            return f": {self.latest}" if self.latest else ""

    return Log()
