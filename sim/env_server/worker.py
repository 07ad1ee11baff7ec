"""The env server: opens one adapter and serves it; `PYTHON worker.py FD`.

It runs in any Python from 3.8 on and imports the standard library and numpy alone. `client` imports
the formats of messages and memory from here. A message is a big-endian length of four bytes and
that many bytes of JSON in UTF-8.
"""

import array
import faulthandler
import fcntl
import importlib.util
import json
import math
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

MOST_BYTES = 1 << 20
"""Size of one message without its length."""
MOST_MEMORY = 1 << 36
"""Bytes of all arrays of an adapter."""
ALIGNMENT = 64
CONTROL_BYTES = 4096
"""A page with the count of heartbeats in its first eight bytes."""
BEAT_S = 0.2
_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_PART_BYTES = 1 << 14
_FILE_SPACE = socket.CMSG_SPACE(8 * array.array("i").itemsize)

Fields = Dict[str, Tuple[Tuple[int, ...], str]]


class ProtocolError(Exception):
    """The other side sent an invalid message; the stream can no longer be read."""


# --- messages -----------------------------------------------------------------------------------


def encode(message: Dict[str, Any]) -> bytes:
    """Return the bytes of a message.

    Raises:
        ValueError: it is not JSON (NaN is not either), or longer than `MOST_BYTES`.
    """
    try:
        body = _ENCODER.encode(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"message: cannot be written as JSON ({error})") from error
    if len(body) > MOST_BYTES:
        raise ValueError(
            f"message: got {len(body)} bytes, expected at most {MOST_BYTES}; put large values "
            "into arrays"
        )
    return _HEADER.pack(len(body)) + body


def decode(body: bytes) -> Dict[str, Any]:
    """Return the message of a body.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        message = json.loads(body.decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"message: got {body[:60]!r}, expected JSON ({error})") from error
    if not isinstance(message, dict):
        raise ValueError(f"message: got {body[:60]!r}, expected a JSON object")
    return message


class Inbox:
    """Received data of a socket: bytes of messages, and files sent with them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = b""
        self._files: List[int] = []

    def take(self) -> Optional[bytes]:
        """Return the body of the next message; None if it is incomplete.

        Raises:
            ProtocolError: it is longer than `MOST_BYTES`.
        """
        if len(self._bytes) < HEADER_BYTES:
            return None
        (length,) = _HEADER.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise ProtocolError(f"a message of {length} bytes, expected at most {MOST_BYTES}")
        end = HEADER_BYTES + length
        if len(self._bytes) < end:
            return None
        body, self._bytes = self._bytes[HEADER_BYTES:end], self._bytes[end:]
        return body

    def fill(self) -> None:
        """Wait for data.

        Raises:
            EOFError: the other side has closed the socket.
        """
        part, extra, _, _ = self._sock.recvmsg(_PART_BYTES, _FILE_SPACE)
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
                self._files += files
        if not part:
            raise EOFError("the other side closed the socket")
        self._bytes += part

    def files(self) -> List[int]:
        """Return the open files received since the last call; the caller closes them."""
        files, self._files = self._files, []
        return files


def send_files(sock: socket.socket, message: bytes, files: Sequence[int]) -> None:
    """Send a short message and open files with it."""
    packed = array.array("i", files)
    sent = sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed.tobytes())])
    sock.sendall(message[sent:])


# --- shared arrays ------------------------------------------------------------------------------


def check_fields(fields: Any) -> Fields:
    """Return an adapter's layout of arrays, checked: name -> (shape, dtype).

    Raises:
        ValueError: a shape or dtype is invalid, or the sum is above `MOST_MEMORY`.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"fields: got {fields!r}, expected name -> [shape, dtype]")
    checked: Fields = {}
    for name, field in fields.items():
        try:
            shape, kind = field
            sizes, dtype = tuple(int(n) for n in shape), np.dtype(str(kind))
        except (TypeError, ValueError) as error:
            raise ValueError(f"fields: {name} is {field!r}, expected [shape, dtype]") from error
        if dtype.kind not in "biuf" or any(n < 0 for n in sizes):
            raise ValueError(f"fields: {name} is {field!r}, expected numbers and no size below 0")
        checked[str(name)] = (sizes, dtype.name)
    if total_bytes(checked) > MOST_MEMORY:
        raise ValueError(
            f"fields: got {total_bytes(checked)} bytes, expected at most {MOST_MEMORY}"
        )
    return checked


def total_bytes(fields: Fields) -> int:
    """Return the size in bytes of the arrays of a layout, at least 1."""
    return max(1, sum(_aligned(_bytes(field)) for field in fields.values()))


def map_arrays(memory: Any, fields: Fields) -> Dict[str, np.ndarray]:
    """Return the arrays of a layout in a buffer, each at a multiple of 64 bytes."""
    arrays, offset = {}, 0
    for name, (shape, kind) in fields.items():
        count = math.prod(shape)
        # An empty array may not begin at the end of a buffer.
        flat = np.frombuffer(memory, kind, count, offset) if count else np.zeros(0, kind)
        arrays[name] = flat.reshape(shape)
        offset += _aligned(_bytes((shape, kind)))
    return arrays


def _bytes(field: Tuple[Tuple[int, ...], str]) -> int:
    shape, kind = field
    # Python's integers: numpy's would overflow for an absurd shape.
    return np.dtype(kind).itemsize * math.prod(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# --- the adapter --------------------------------------------------------------------------------


class SiblingFinder:
    """Finds modules next to an adapter file whose names begin with an underscore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of such a module, else None."""
        file = self._folder / (name + ".py")
        if path is not None or not name.startswith("_") or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, str(file))


def load_adapter(file: Path, options: Dict[str, Any]) -> Any:
    """Return the adapter of a file, which may import the `_*.py` files next to it.

    Raises:
        ValueError: there is no such file, or no `open_adapter` in it.
    """
    if not file.is_file():
        raise ValueError(f"adapter: got {file}, expected a Python file")
    spec = importlib.util.spec_from_file_location("mneme_adapter_" + file.stem, str(file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    loaded = set(sys.modules)
    finder = SiblingFinder(file.parent)
    sys.meta_path.append(finder)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "open_adapter"):
            raise ValueError(f"adapter: {file} has no open_adapter(options)")
        return module.open_adapter(options)
    finally:
        sys.meta_path.remove(finder)
        # Two adapters in one process may have siblings of the same name.
        for name in set(sys.modules) - loaded:
            place = getattr(sys.modules[name], "__file__", None)
            if name.startswith("_") and place == str(file.parent / (name + ".py")):
                del sys.modules[name]


class Server:
    """Serves one adapter to the process at the other end of a socket."""

    def __init__(self, sock: socket.socket, inbox: Inbox) -> None:
        self._sock, self._inbox = sock, inbox
        self._adapter: Any = None
        self._fields: Fields = {}
        self._last = 0
        self._ended = False

    def serve(self) -> None:
        """Answer until the client closes.

        Raises:
            EOFError: the other end is closed.
            ProtocolError: a message is invalid.
        """
        while not self._ended:
            body = self._inbox.take()
            if body is None:
                self._inbox.fill()
            else:
                self._sock.sendall(self._reply(body))

    def _reply(self, body: bytes) -> bytes:
        number: Any = None
        try:
            message = decode(body)
            number = message.get("id")
            if not isinstance(number, int) or number <= self._last:
                raise ValueError(f"id: got {number!r}, expected more than {self._last}")
            self._last = number
            begin = time.perf_counter()
            result = self._answer(message)
            taken = time.perf_counter() - begin
            return encode({"id": number, "result": result, "seconds": taken})
        # A simulator may raise anything, even SystemExit; its adapter stays open.
        except BaseException as error:  # noqa: BLE001
            return encode({"id": number, "error": describe(error)})

    def _answer(self, message: Dict[str, Any]) -> Any:
        kind = message.get("kind")
        if kind == "open" and self._adapter is None:
            file = Path(str(message.get("adapter")))
            self._adapter = load_adapter(file, message.get("options") or {})
            self._fields = check_fields(self._adapter.fields())
            return {"fields": self._fields, "announced": self._adapter.announce()}
        if kind == "close":
            self._ended = True
            self.close()
            return None
        if self._adapter is None or kind not in ("bind", "call"):
            raise ValueError(f"kind: got {kind!r}, expected 'open' first, then bind, call or close")
        if kind == "bind":
            return self._bind()
        return self._adapter.call(message.get("command"), message.get("arguments") or {})

    def _bind(self) -> None:
        files = self._inbox.files()
        size = total_bytes(self._fields)
        try:
            if len(files) != 1 or os.fstat(files[0]).st_size < size:
                raise ValueError(f"bind: got {len(files)} files, expected one of {size} bytes")
            self._adapter.bind(map_arrays(mmap.mmap(files[0], size), self._fields))
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """Close the adapter, once."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close()


def describe(error: BaseException) -> Dict[str, str]:
    """Return an error as JSON: type, message in one line and traceback, all bounded."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "kind": type(error).__name__,
        "sentence": sentence[:2000],
        "traceback": lines[-20000:],
    }


# --- life and death -----------------------------------------------------------------------------


def die_with(lifeline: int) -> None:
    """Let the system kill this process group when the other end of a pipe closes.

    This works even while the process is stopped or a simulator lets no Python thread run.
    """
    group = os.getpgrp()
    # The group is this process's alone if the parent made a session for it.
    alone = os.getsid(0) == group
    set_signal = getattr(fcntl, "F_SETSIG", None)  # Linux has it
    if set_signal is None:
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group if alone else os.getpid())
    fcntl.fcntl(lifeline, set_signal, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def watch(control: mmap.mmap, lifeline: int, parent: int) -> None:
    """Count heartbeats, and end the process when the parent is gone; runs in a thread."""
    beats = np.frombuffer(control, np.uint64, 1)
    poller = select.poll()
    poller.register(lifeline, 0)  # being hung up on is reported all the same
    while True:
        beats[0] += np.uint64(1)
        if poller.poll(BEAT_S * 1000.0) or os.getppid() != parent:
            if os.getsid(0) == os.getpgrp():
                os.killpg(os.getpgrp(), signal.SIGKILL)
            os._exit(1)


def main(argv: Sequence[str]) -> None:
    """Serve until the parent closes; never returns."""
    parent = os.getppid()
    faulthandler.enable()
    # Line buffering keeps a simulator's last output if it dies.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # The files next to this one may need a newer Python.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place and str(Path(place).resolve()) != here]
    code = 1
    try:
        sock = socket.socket(fileno=int(argv[1]))
        os.set_inheritable(sock.fileno(), False)
        inbox = Inbox(sock)
        while inbox.take() is None:  # the greeting with two files
            inbox.fill()
        control, lifeline = inbox.files()
        die_with(lifeline)
        page = mmap.mmap(control, CONTROL_BYTES)
        threading.Thread(target=watch, args=(page, lifeline, parent), daemon=True).start()
        server = Server(sock, inbox)
        server.serve()
        code = 0
    except (EOFError, OSError):
        pass  # the other end is closed
    except ProtocolError as error:
        print(f"env server: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Simulators may crash or hang in the interpreter's shutdown.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv)
