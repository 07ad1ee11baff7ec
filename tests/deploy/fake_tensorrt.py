"""A `tensorrt` made from the recorded interface of a version; its engines are ONNX Runtime's.

A name that is not in the list is an AttributeError, arguments that fit no recorded signature are a
TypeError, and what is in the list but nobody here needs is a NotImplementedError.
"""

import enum
import inspect
import json
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

API = json.loads((Path(__file__).parent / "tensorrt_api.json").read_text())
VERSIONS = tuple(API["versions"])
MAGIC = b"FAKE ENGINE "
SHORT = {
    "FLOAT": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16", "INT64": "INT64", "INT32": "INT32",
    "UINT8": "UINT8", "BOOL": "BOOL", "INT8": "INT8",
}  # fmt: skip
TO_DATA_TYPE = {1: "FLOAT", 2: "UINT8", 7: "INT64", 9: "BOOL"}


def signatures(recorded):
    """Return what a recorded name may be called with; "x=" has a default."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Signature([
            inspect.Parameter(
                name.rstrip("="), kind,
                default=None if name.endswith("=") else inspect.Parameter.empty,
            )
            for name in names
        ])
        for names in recorded
    ]  # fmt: skip


def arguments(where, recorded, args, kwargs):
    """Return arguments by name, or raise TypeError as the binding does."""
    for one in signatures(recorded):
        try:
            return one.bind(*args, **kwargs).arguments
        except TypeError:
            continue
    raise TypeError(f"{where}(): incompatible function arguments {args} {kwargs}")


def plain(value):
    return value._real if isinstance(value, Listed) else value


class Listed:
    """An object of which only what is recorded can be seen."""

    library, listed, kind = None, {}, None

    def __init__(self, *args, **kwargs):
        recorded = self.listed["methods"].get("__init__", [[]])
        given = arguments(type(self).__name__, recorded, args, kwargs)
        if "logger" in given and not hasattr(given["logger"], "_ready"):
            raise TypeError("logger: its base was not initialised")
        object.__setattr__(self, "_real", self.kind(self.library, **given))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        where = f"{type(self).__name__}.{name}"
        self.library.used.add(where)
        if name in self.listed["properties"]:
            return self.library.shown(getattr(self._real, name))
        if name not in self.listed["methods"]:
            raise AttributeError(f"{where} is not in TensorRT {self.library.__version__}")
        body = getattr(self._real, name, None)
        if body is None:
            raise NotImplementedError(where)

        def call(*args, **kwargs):
            given = arguments(where, self.listed["methods"][name], args, kwargs)
            return self.library.shown(body(**{k: plain(v) for k, v in given.items()}))

        return call

    def __setattr__(self, name, value):
        where = f"{type(self).__name__}.{name}"
        self.library.used.add(where)
        if self.listed["properties"].get(name) != "w":
            raise AttributeError(f"{where} cannot be set in TensorRT {self.library.__version__}")
        setattr(self._real, name, value)

    def __bytes__(self):
        return self._real.data


class Library(types.ModuleType):
    """The module.

    Args:
        version: One that was recorded.
        cuda: Where its engines run.
    """

    def __init__(self, version, cuda):
        super().__init__("tensorrt")
        self.__dict__.update(
            __version__=version,
            cuda=cuda,
            listed=API["versions"][version],
            used=set(),
            builds=0,
            networks=[],
        )
        for name, members in self.listed["enums"].items():
            made = enum.Enum(name, {k: v for k, v in members.items() if v is not None})
            made.__int__ = lambda self: self.value
            self.__dict__[f"_{name}" if "." in name else name] = made
        severity = self.__dict__["_ILogger.Severity"]
        members = {**severity.__members__, "Severity": severity, "__init__": _get_ready}
        self.__dict__["ILogger"] = type("ILogger", (), members)
        for name, kind in KINDS.items():
            body = {"library": self, "listed": self.listed["classes"][name], "kind": kind}
            self.__dict__[name] = type(name, (Listed,), body)

    def __getattr__(self, name):
        listed = self.listed
        there = (*listed["classes"], *listed["functions"], *listed["attributes"])
        if name in (*there, *listed["other_classes"]):
            raise NotImplementedError(f"tensorrt.{name}")
        raise AttributeError(f"tensorrt.{name} is not in TensorRT {self.__version__}")

    def shown(self, value):
        """Return a result as the binding shows it."""
        name = next((n for n, kind in KINDS.items() if type(value) is kind), None)
        if name is None:
            return value
        made = object.__new__(self.__dict__[name])
        object.__setattr__(made, "_real", value)
        return made


def _get_ready(self):
    self._ready = True


class _Network:
    def __init__(self, typed):
        self.typed, self.model = typed, None


class _Builder:
    max_threads = 1

    def __init__(self, library, logger):
        self.library, self.logger = library, logger

    def create_network(self, flags=0):
        kinds = self.library.NetworkDefinitionCreationFlag
        eleven = int(self.library.__version__.split(".")[0]) > 10
        network = _Network(eleven or bool(flags >> int(kinds.STRONGLY_TYPED) & 1))
        self.library.networks.append(network)
        return network

    def create_optimization_profile(self):
        return _Profile()

    def create_builder_config(self):
        return _Settings(self.library)

    def build_serialized_network(self, network, config):
        graph = onnx.load_from_string(network.model).graph
        for value in graph.input:
            dynamic = any(d.dim_param for d in value.type.tensor_type.shape.dim)
            if dynamic and value.name not in config.ranges:
                said = f"{value.name}: dynamic input is missing dimensions in profile 0"
                self.logger.log(self.library.ILogger.ERROR, said)
                return None
        self.library.builds += 1
        config.timings.data += b"timed;"
        head = json.dumps([self.library.__version__, config.ranges]).encode()
        return _HostMemory(MAGIC + head + b"\n" + network.model)


class _Profile:
    def __init__(self):
        self.ranges = {}

    def set_shape(self, input, min, opt, max):  # noqa: A002
        assert all(a <= b <= c for a, b, c in zip(min, opt, max, strict=True))
        self.ranges[input] = [list(min), list(opt), list(max)]


class _Settings:
    builder_optimization_level = 3

    def __init__(self, library):
        self.library, self.ranges, self.timings = library, {}, _Timings(b"")
        self.on = {library.BuilderFlag.TF32}

    def set_memory_pool_limit(self, pool, pool_size):
        assert isinstance(pool, self.library.MemoryPoolType)

    def clear_flag(self, flag):
        self.on.discard(flag)

    def set_flag(self, flag):
        self.on.add(flag)

    def add_optimization_profile(self, profile):
        self.ranges = profile.ranges
        return 0

    def create_timing_cache(self, serialized_timing_cache):
        return _Timings(bytes(serialized_timing_cache))

    def set_timing_cache(self, cache, ignore_mismatch):
        if cache.data and not cache.data.startswith(b"timed;"):
            return False
        self.timings = cache
        return True

    def get_timing_cache(self):
        return self.timings


class _Timings:
    def __init__(self, data):
        self.data = data

    def serialize(self):
        return _HostMemory(self.data)


class _HostMemory:
    def __init__(self, data):
        self.data, self.nbytes = data, len(data)


class _Parser:
    def __init__(self, library, network, logger):
        self.library, self.network, self.errors = library, plain(network), []

    @property
    def num_errors(self):
        return len(self.errors)

    def parse(self, model, path=None):
        self.errors = [_ParserError(said) for said in refused(model)]
        self.network.model = bytes(model)
        return not self.errors

    def get_error(self, index):
        return self.errors[index]


class _ParserError:
    def __init__(self, said):
        self.said = said

    def desc(self):
        return self.said


def refused(model):
    """Return what of a graph the recorded parser does not take."""
    try:
        whole = onnx.shape_inference.infer_shapes(onnx.load_from_string(bytes(model)))
    except DecodeError as error:
        return [f"Failed to parse the ONNX model: {type(error).__name__}"]
    graph, kinds = whole.graph, {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kinds[value.name] = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    for constant in graph.initializer:
        kinds.pop(constant.name, None)
    found = []
    for node in graph.node:
        known = API["operators"].get(node.op_type)
        if known is None:
            found.append(f"no importer registered for {node.op_type}")
            continue
        given = [kinds[name] for name in node.input if name in kinds]
        found += [f"{node.op_type} of {kind}" for kind in given if SHORT[kind] not in known]
    return found


class _Runtime:
    def __init__(self, library, logger):
        self.library, self.logger = library, logger

    def deserialize_cuda_engine(self, serialized_engine):
        head, _, model = serialized_engine.partition(b"\n")
        if head.startswith(MAGIC):
            version, ranges = json.loads(head[len(MAGIC) :])
            if version == self.library.__version__:
                return _Engine(self.library, self.logger, model, ranges)
        self.logger.log(self.library.ILogger.ERROR, "Serialization assertion failed: version tag")
        return None


class _Engine:
    device_memory_size_v2 = 4096

    def __init__(self, library, logger, model, ranges):
        self.library, self.logger, self.ranges = library, logger, ranges
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        graph = onnx.load_from_string(model).graph
        self.inputs = {v.name: v for v in graph.input}
        self.outputs = {v.name: v for v in graph.output}
        self.num_io_tensors = len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index):
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name):
        modes = self.library.TensorIOMode
        return modes.INPUT if name in self.inputs else modes.OUTPUT

    def get_tensor_location(self, name):
        return self.library.TensorLocation.DEVICE

    def get_tensor_dtype(self, name):
        kind = {**self.inputs, **self.outputs}[name].type.tensor_type.elem_type
        return getattr(self.library.DataType, TO_DATA_TYPE[kind])

    def shape(self, name):
        dims = {**self.inputs, **self.outputs}[name].type.tensor_type.shape.dim
        return tuple(-1 if d.dim_param else d.dim_value for d in dims)

    def create_execution_context(self, strategy=None):
        return _Context(self)


class _Context:
    def __init__(self, engine):
        self.engine, self.cuda = engine, engine.library.cuda
        self.shapes = {n: engine.shape(n) for n in (*engine.inputs, *engine.outputs)}
        self.addresses, self.ready, self.age = {}, False, 0

    def set_input_shape(self, name, shape):
        least, _, most = self.engine.ranges.get(name, [self.engine.shape(name)] * 3)
        fits = len(shape) == len(least) and all(
            a <= n <= b for a, n, b in zip(least, shape, most, strict=True)
        )
        if fits and tuple(shape) != self.shapes[name]:
            self.shapes[name], self.ready, self.age = tuple(shape), False, self.age + 1
        return fits

    def get_tensor_shape(self, name):
        return self.shapes[name]

    def set_tensor_address(self, name, memory):
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle):
        stream, log = self.cuda.streams[stream_handle], self.engine.library.ILogger.ERROR
        whole = set(self.shapes) == set(self.addresses) and all(
            -1 not in s for s in self.shapes.values()
        )
        if not whole or (stream.recording is not None and not self.ready):
            self.engine.logger.log(log, "not ready: address or shape not set, or first run")
            return False
        self.ready, age = True, self.age

        def compute():
            assert age == self.age, "recorded for other shapes"
            given = {name: self.array(name) for name in self.engine.inputs}
            found = self.engine.session.run(list(self.engine.outputs), given)
            for name, value in zip(self.engine.outputs, found, strict=True):
                self.array(name)[...] = value

        stream.put(compute)
        return True

    def array(self, name):
        """Return a tensor where it lies on the device."""
        kind = {**self.engine.inputs, **self.engine.outputs}[name].type.tensor_type.elem_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        size = int(np.prod(self.shapes[name])) * dtype.itemsize
        part = self.cuda.place(self.addresses[name], size, "device")
        assert part is not None, f"{name}: not an address on the device"
        return part.view(dtype).reshape(self.shapes[name])


KINDS = {
    "Builder": _Builder, "INetworkDefinition": _Network, "OnnxParser": _Parser,
    "ParserError": _ParserError, "IBuilderConfig": _Settings, "IOptimizationProfile": _Profile,
    "ITimingCache": _Timings, "IHostMemory": _HostMemory, "Runtime": _Runtime,
    "ICudaEngine": _Engine, "IExecutionContext": _Context,
}  # fmt: skip
"""What of the interface is acted out."""
