"""Memory, one stream and recorded graphs of a GPU through `cuda.bindings.runtime`; no torch here.

The binding is imported when a device is opened: without a GPU there need be none.
"""

import ctypes
import importlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FIRST = 0
"""The device that CUDA names first; CUDA_VISIBLE_DEVICES chooses another."""


class Buffer(NamedTuple):
    """Memory on both sides, of one size."""

    host: np.ndarray
    """u8 [n], pinned: the GPU reads and writes it by itself."""
    host_address: int
    """Where that is."""
    device_address: int
    """Where the GPU's own is."""


class Device:
    """The first GPU, and a stream of its own; the GPU's memory is released with it.

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
        code, *found = self.runtime.cudaGetDeviceCount()
        if code != self.runtime.cudaError_t.cudaSuccess or not found[0]:
            raise ValueError(
                f"CUDA finds no GPU ({code.name}); install NVIDIA's driver, or name another target "
                "with --targets"
            )
        told = self._call(self.runtime.cudaGetDeviceProperties(FIRST))
        self.name = told.name.decode()
        self.capability = (int(told.major), int(told.minor))
        flags = self.runtime.cudaStreamNonBlocking
        self.stream = self._call(self.runtime.cudaStreamCreateWithFlags(flags))
        self.held: list[tuple[Callable[[Any], Any], Any]] = []
        self.held.append((self.runtime.cudaStreamDestroy, self.stream))
        weakref.finalize(self, _release, self.held)

    def buffer(self, size: int) -> Buffer:
        """Return `size` bytes, at least one, on both sides.

        Raises:
            ValueError: there is not so much memory.
        """
        size = max(size, 1)
        host = int(self._call(self.runtime.cudaMallocHost(size)))
        block = (ctypes.c_uint8 * size).from_address(host)
        weakref.finalize(block, self.runtime.cudaFreeHost, host)  # views may outlive the device
        device = int(self._call(self.runtime.cudaMalloc(size)))
        self.held.append((self.runtime.cudaFree, device))
        return Buffer(np.ctypeslib.as_array(block), host, device)

    def upload(self, buffer: Buffer, size: int) -> None:
        """Put a copy of the first `size` bytes to the GPU into the stream."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(buffer.device_address, buffer.host_address, size, kind)

    def download(self, buffer: Buffer, size: int) -> None:
        """Put a copy of the first `size` bytes from the GPU into the stream."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(buffer.host_address, buffer.device_address, size, kind)

    def synchronise(self) -> None:
        """Wait until everything in the stream is done."""
        self._call(self.runtime.cudaStreamSynchronize(self.stream))

    def record(self, work: Callable[[], None]) -> Any:
        """Return what `work` puts into the stream, to be launched as one; it is not run now.

        Raises:
            ValueError: something in it cannot be recorded.
        """
        mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call(self.runtime.cudaStreamBeginCapture(self.stream, mode))
        try:
            work()
        finally:  # a stream left recording would run nothing any more
            ended = self.runtime.cudaStreamEndCapture(self.stream)
        graph = self._call(ended)
        recorded = self._call(self.runtime.cudaGraphInstantiate(graph, 0))
        self._call(self.runtime.cudaGraphDestroy(graph))
        return recorded

    def launch(self, recorded: Any) -> None:
        """Put what was recorded into the stream."""
        self._call(self.runtime.cudaGraphLaunch(recorded, self.stream))

    def forget(self, recorded: Any) -> None:
        """Release what was recorded."""
        self._call(self.runtime.cudaGraphExecDestroy(recorded))

    def _copy(self, to: int, source: int, size: int, kind: Any) -> None:
        self._call(self.runtime.cudaMemcpyAsync(to, source, size, kind, self.stream))

    def _call(self, result: tuple[Any, ...]) -> Any:
        """Return what a call of the runtime gave besides its code."""
        code, *values = result
        if code != self.runtime.cudaError_t.cudaSuccess:
            said = self.runtime.cudaGetErrorString(code)[1]
            raise ValueError(
                f"CUDA: {code.name}: {said.decode()}; free the GPU's memory, start again, or name "
                "another target with --targets"
            )
        return values[0] if values else None


def _release(held: list[tuple[Callable[[Any], Any], Any]]) -> None:
    while held:
        free, what = held.pop()
        free(what)
