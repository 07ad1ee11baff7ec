"""Memory, one stream and CUDA graphs of a GPU through `cuda.bindings.runtime`; no torch here.

The binding is imported when a device is opened: machines without a GPU do not need it.
"""

import ctypes
import importlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FIRST = 0
"""The first CUDA device; CUDA_VISIBLE_DEVICES selects another."""


class Buffer(NamedTuple):
    """Memory of one size on host (u8 [n], pinned) and GPU."""

    host: np.ndarray
    host_address: int
    device_address: int


class Device:
    """The first GPU and a stream; the GPU's memory is released with it.

    Raises:
        ValueError: the binding is not installed, or CUDA finds no GPU.
    """

    def __init__(self) -> None:
        try:
            self.runtime: Any = importlib.import_module("cuda.bindings.runtime")
        except ModuleNotFoundError as error:
            raise ValueError(
                "CUDA's Python binding is not installed; pip install cuda-bindings of the major "
                "version of this machine's CUDA, or name another target with --targets"
            ) from error
        code, *count = self.runtime.cudaGetDeviceCount()
        if code != self.runtime.cudaError_t.cudaSuccess or not count[0]:
            raise ValueError(
                f"CUDA finds no GPU ({code.name}); install NVIDIA's driver, or name another target "
                "with --targets"
            )
        properties = self._call(self.runtime.cudaGetDeviceProperties(FIRST))
        self.name = properties.name.decode()
        self.capability = (int(properties.major), int(properties.minor))
        flags = self.runtime.cudaStreamNonBlocking
        self.stream = self._call(self.runtime.cudaStreamCreateWithFlags(flags))
        self.held: list[tuple[Callable[[Any], Any], Any]] = []
        self.held.append((self.runtime.cudaStreamDestroy, self.stream))
        weakref.finalize(self, _release, self.held)

    def buffer(self, size: int) -> Buffer:
        """Return `size` bytes, at least one, on host and GPU.

        Raises:
            ValueError: there is not enough memory.
        """
        size = max(size, 1)
        host = int(self._call(self.runtime.cudaMallocHost(size)))
        block = (ctypes.c_uint8 * size).from_address(host)
        weakref.finalize(block, self.runtime.cudaFreeHost, host)  # views may outlive the device
        device = int(self._call(self.runtime.cudaMalloc(size)))
        self.held.append((self.runtime.cudaFree, device))
        return Buffer(np.ctypeslib.as_array(block), host, device)

    def upload(self, buffer: Buffer, size: int) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(buffer.device_address, buffer.host_address, size, kind)

    def download(self, buffer: Buffer, size: int) -> None:
        """Enqueue a copy of the first `size` bytes from the GPU."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(buffer.host_address, buffer.device_address, size, kind)

    def synchronize(self) -> None:
        """Wait until everything in the stream is done."""
        self._call(self.runtime.cudaStreamSynchronize(self.stream))

    def record(self, work: Callable[[], None]) -> Any:
        """Return a CUDA graph of what `work` enqueues; it does not run now.

        Raises:
            ValueError: something in it cannot be recorded.
        """
        mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call(self.runtime.cudaStreamBeginCapture(self.stream, mode))
        try:
            work()
        finally:  # a stream that keeps recording would run nothing
            ended = self.runtime.cudaStreamEndCapture(self.stream)
        graph = self._call(ended)
        recorded = self._call(self.runtime.cudaGraphInstantiate(graph, 0))
        self._call(self.runtime.cudaGraphDestroy(graph))
        return recorded

    def launch(self, recorded: Any) -> None:
        """Enqueue a CUDA graph."""
        self._call(self.runtime.cudaGraphLaunch(recorded, self.stream))

    def forget(self, recorded: Any) -> None:
        """Release a CUDA graph."""
        self._call(self.runtime.cudaGraphExecDestroy(recorded))

    def _copy(self, to: int, source: int, size: int, kind: Any) -> None:
        self._call(self.runtime.cudaMemcpyAsync(to, source, size, kind, self.stream))

    def _call(self, result: tuple[Any, ...]) -> Any:
        """Return the value of a call of the runtime without its code."""
        code, *values = result
        if code != self.runtime.cudaError_t.cudaSuccess:
            text = self.runtime.cudaGetErrorString(code)[1]
            raise ValueError(
                f"CUDA: {code.name}: {text.decode()}; free the GPU's memory, start again, or name "
                "another target with --targets"
            )
        return values[0] if values else None


def _release(held: list[tuple[Callable[[Any], Any], Any]]) -> None:
    while held:
        free, resource = held.pop()
        free(resource)
