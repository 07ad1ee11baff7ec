"""CUDA's runtime as far as `deploy.targets._cuda` calls it: memory that is numpy's, a stream that
waits.

What is put into a stream happens when it is waited for, not before. A wrong address, size or
direction, and a call that may not be recorded, are errors as they are on a GPU.
"""

import enum
import types

import numpy as np


class cudaError_t(enum.Enum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(enum.Enum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStreamCaptureMode(enum.Enum):
    cudaStreamCaptureModeThreadLocal = 1


class Stream:
    """Work that waits, and what is being recorded."""

    def __init__(self, handle):
        self.handle, self.waiting, self.recording, self.spoilt = handle, [], None, False

    def __int__(self):
        return self.handle

    def put(self, work):
        (self.waiting if self.recording is None else self.recording).append(work)


OK = cudaError_t.cudaSuccess
WRONG = (cudaError_t.cudaErrorInvalidValue,)


class Runtime(types.ModuleType):
    """The module; `broken` maps a function to the error it returns."""

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaStreamCaptureMode = cudaStreamCaptureMode
    cudaStreamNonBlocking = 1

    def __init__(self, name=b"Fake Orin", capability=(8, 7)):
        super().__init__("cuda.bindings.runtime")
        self.device = types.SimpleNamespace(name=name, major=capability[0], minor=capability[1])
        self.memory, self.streams, self.broken, self.launched = {}, {}, {}, 0

    def __getattribute__(self, name):
        broken = object.__getattribute__(self, "__dict__").get("broken", {})
        if name in broken:
            return lambda *_: (broken[name], None)
        return object.__getattribute__(self, name)

    def place(self, address, size, side):
        """Return a view of allocated memory, None if it is not wholly that."""
        for begin, (block, of) in self.memory.items():
            if of == side and begin <= address and address + size <= begin + len(block):
                return block[address - begin : address - begin + size]
        return None

    def _allocate(self, size, side):
        block = np.full(size, 0xA5, np.uint8)  # nothing may rely on zeros
        self.memory[block.ctypes.data] = (block, side)
        return OK, block.ctypes.data

    def _free(self, address, side):
        if self.memory.get(address, (None, ""))[1] != side:
            return WRONG
        del self.memory[address]
        return (OK,)

    def cudaGetDeviceCount(self):
        return OK, 1

    def cudaGetDeviceProperties(self, device):
        return (OK, self.device) if device == 0 else WRONG

    def cudaGetErrorString(self, error):
        return OK, error.name.encode()

    def cudaMalloc(self, size):
        return self._allocate(size, "device")

    def cudaMallocHost(self, size):
        return self._allocate(size, "host")

    def cudaFree(self, devPtr):
        return self._free(devPtr, "device")

    def cudaFreeHost(self, ptr):
        return self._free(ptr, "host")

    def cudaStreamCreateWithFlags(self, flags):
        stream = Stream(0x1000 + len(self.streams))
        self.streams[stream.handle] = stream
        return OK, stream

    def cudaStreamDestroy(self, stream):
        return (OK,) if self.streams.pop(stream.handle, None) else WRONG

    def cudaMemcpyAsync(self, dst, src, count, kind, stream):
        up = kind is cudaMemcpyKind.cudaMemcpyHostToDevice
        source = self.place(src, count, "host" if up else "device")
        target = self.place(dst, count, "device" if up else "host")
        if source is None or target is None:
            return WRONG

        def copy():
            target[:] = source

        stream.put(copy)
        return (OK,)

    def cudaStreamSynchronize(self, stream):
        if stream.recording is not None:
            stream.spoilt = True
            return (cudaError_t.cudaErrorStreamCaptureUnsupported,)
        while stream.waiting:
            stream.waiting.pop(0)()
        return (OK,)

    def cudaStreamBeginCapture(self, stream, mode):
        stream.recording, stream.spoilt = [], False
        return (OK,)

    def cudaStreamEndCapture(self, stream):
        found, stream.recording = stream.recording, None
        if stream.spoilt:
            return cudaError_t.cudaErrorStreamCaptureInvalidated, None
        return OK, found

    def cudaGraphInstantiate(self, graph, flags):
        return OK, {"work": list(graph), "alive": True}

    def cudaGraphDestroy(self, graph):
        return (OK,)

    def cudaGraphLaunch(self, graphExec, stream):
        if not graphExec["alive"]:
            return WRONG
        for work in graphExec["work"]:
            stream.put(work)
        self.launched += 1
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec):
        graphExec["alive"] = False
        return (OK,)
