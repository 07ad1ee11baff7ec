"""The child's side of the process bridge: opens one host and serves it; `PYTHON worker.py FD`.

It runs in any Python from 3.8 on and imports nothing but the standard library and numpy. `client`
takes the form of messages and memory from here, so that both sides agree by being one text. A
message is four bytes of length, the highest first, and as much JSON in UTF-8.
"""

import array
import faulthandler
import fcntl
import importlib.util
import json
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
"""Of one message, its length left out."""
MOST_MEMORY = 1 << 36
"""Bytes of all arrays of a host."""
ALIGNMENT = 64
CONTROL_BYTES = 4096
"""A page of its own, with the count of heartbeats in its first eight bytes."""
BEAT_S = 0.2
_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_PART_BYTES = 1 << 14
_FILE_SPACE = socket.CMSG_SPACE(8 * array.array("i").itemsize)

Fields = Dict[str, Tuple[Tuple[int, ...], str]]


class ProtocolError(Exception):
    """The other side sent what is no message; the stream can no longer be read."""


# --- messages -----------------------------------------------------------------------------------


def encode(message: Dict[str, Any]) -> bytes:
    """Return a message as it goes over the socket.

    Raises:
        ValueError: it is no JSON (NaN is none either), or longer than `MOST_BYTES`.
    """
    try:
        body = _ENCODER.encode(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"message: cannot be written as JSON ({error})") from error
    if len(body) > MOST_BYTES:
        raise ValueError(
            f"message: got {len(body)} bytes, expected at most {MOST_BYTES}; what is large belongs "
            "into arrays"
        )
    return _HEADER.pack(len(body)) + body


def decode(body: bytes) -> Dict[str, Any]:
    """Return the message of a body.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        message = json.loads(body.decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"message: got {body[:60]!r}, expected JSON ({error})") from error
    if not isinstance(message, dict):
        raise ValueError(f"message: got {body[:60]!r}, expected a JSON object")
    return message


class Inbox:
    """What came over a socket: bytes that become messages, and files that came with them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = b""
        self._files: List[int] = []

    def take(self) -> Optional[bytes]:
        """Return the body of the next message; None if it has not come as a whole.

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
        """Wait until something comes.

        Raises:
            EOFError: the other side is gone.
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
        """Return the open files that came since they were asked for last; they are the caller's."""
        files, self._files = self._files, []
        return files


def send_files(sock: socket.socket, message: bytes, files: Sequence[int]) -> None:
    """Send a short message and open files with it."""
    packed = array.array("i", files)
    sent = sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed.tobytes())])
    sock.sendall(message[sent:])


# --- arrays in memory that both sides hold ------------------------------------------------------


def check_fields(fields: Any) -> Fields:
    """Return what a host says of its arrays, checked: name -> (shape, dtype).

    Raises:
        ValueError: a name, shape or dtype is none, or all is more than `MOST_MEMORY`.
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
    """Return how much memory the arrays of a layout take, at least one byte."""
    return max(1, sum(_aligned(_bytes(field)) for field in fields.values()))


def map_arrays(memory: Any, fields: Fields) -> Dict[str, np.ndarray]:
    """Return the arrays of a layout, one after the other in a buffer, each at a multiple of 64."""
    arrays, offset = {}, 0
    for name, (shape, kind) in fields.items():
        count = int(np.prod(shape, dtype=np.int64))
        # An empty array may not begin at the end of a buffer.
        flat = np.frombuffer(memory, kind, count, offset) if count else np.zeros(0, kind)
        arrays[name] = flat.reshape(shape)
        offset += _aligned(_bytes((shape, kind)))
    return arrays


def _bytes(field: Tuple[Tuple[int, ...], str]) -> int:
    shape, kind = field
    # Python's numbers: numpy's would wrap around where a shape is absurd.
    size = np.dtype(kind).itemsize
    for length in shape:
        size *= length
    return size


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# --- the host -----------------------------------------------------------------------------------


class Beside:
    """Finds modules that lie beside a host file under an underscore, and no others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return where `import NAME` finds it; None leaves that to others."""
        file = self._folder / (name + ".py")
        if path is not None or not name.startswith("_") or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, str(file))


def load_host(file: Path, options: Dict[str, Any]) -> Any:
    """Return the host that a file opens; what lies beside it is known to it alone.

    Raises:
        ValueError: there is no such file, or no `open_host` in it.
    """
    if not file.is_file():
        raise ValueError(f"host: got {file}, expected a Python file")
    spec = importlib.util.spec_from_file_location("mneme_host_" + file.stem, str(file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules)
    finder = Beside(file.parent)
    sys.meta_path.append(finder)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "open_host"):
            raise ValueError(f"host: {file} has no open_host(options)")
        return module.open_host(options)
    finally:
        sys.meta_path.remove(finder)
        # Two hosts in one process may have neighbours of the same name.
        for name in set(sys.modules) - known:
            place = getattr(sys.modules[name], "__file__", None)
            if name.startswith("_") and place == str(file.parent / (name + ".py")):
                del sys.modules[name]


class Server:
    """Serves one host to the process at the other end of a socket."""

    def __init__(self, sock: socket.socket, inbox: Inbox) -> None:
        self._sock, self._inbox = sock, inbox
        self._host: Any = None
        self._fields: Fields = {}
        self._last = 0
        self._ended = False

    def serve(self) -> None:
        """Answer until told to close.

        Raises:
            EOFError: nobody is at the other end.
            ProtocolError: what came is no message.
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
        # A simulator may raise anything, SystemExit too, and its host lives on.
        except BaseException as error:  # noqa: BLE001
            return encode({"id": number, "error": describe(error)})

    def _answer(self, message: Dict[str, Any]) -> Any:
        kind = message.get("kind")
        if kind == "open" and self._host is None:
            self._host = load_host(Path(str(message.get("host"))), message.get("options") or {})
            self._fields = check_fields(self._host.fields())
            return {"fields": self._fields, "announced": self._host.announce()}
        if kind == "close":
            self._ended = True
            self.close()
            return None
        if self._host is None or kind not in ("bind", "call"):
            raise ValueError(f"kind: got {kind!r}, expected 'open' first, then bind, call or close")
        if kind == "bind":
            return self._bind()
        return self._host.call(message.get("command"), message.get("arguments") or {})

    def _bind(self) -> None:
        files = self._inbox.files()
        size = total_bytes(self._fields)
        try:
            if len(files) != 1 or os.fstat(files[0]).st_size < size:
                raise ValueError(f"bind: got {len(files)} files, expected one of {size} bytes")
            self._host.bind(map_arrays(mmap.mmap(files[0], size), self._fields))
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """Close the host, once."""
        host, self._host = self._host, None
        if host is not None:
            host.close()


def describe(error: BaseException) -> Dict[str, str]:
    """Return an error as JSON: its kind, one sentence, and where it came from, all bounded."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "kind": type(error).__name__,
        "sentence": sentence[:2000],
        "traceback": lines[-20000:],
    }


# --- life and death -----------------------------------------------------------------------------


def die_with(lifeline: int) -> None:
    """Have the system kill this process group as soon as the other end of a pipe is gone.

    It does so even while the process is stopped or a simulator lets no thread of Python run.
    """
    group = os.getpgrp()
    # The group is ours alone where the parent made a session for it.
    alone = os.getsid(0) == group
    set_signal = getattr(fcntl, "F_SETSIG", None)  # Linux has it
    if set_signal is None:
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group if alone else os.getpid())
    fcntl.fcntl(lifeline, set_signal, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def watch(control: mmap.mmap, lifeline: int, parent: int) -> None:
    """Count heartbeats, and end the process where the parent is gone. For a thread of its own."""
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
    """Serve until the parent says that it is enough; never returns."""
    parent = os.getppid()
    faulthandler.enable()
    # What a simulator said last is read where it died, so nothing waits in a buffer.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # What lies beside this file is the parent's, and may be newer than this Python.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place and str(Path(place).resolve()) != here]
    code = 1
    try:
        sock = socket.socket(fileno=int(argv[1]))
        os.set_inheritable(sock.fileno(), False)
        inbox = Inbox(sock)
        while inbox.take() is None:  # a greeting, with two files
            inbox.fill()
        control, lifeline = inbox.files()
        die_with(lifeline)
        page = mmap.mmap(control, CONTROL_BYTES)
        threading.Thread(target=watch, args=(page, lifeline, parent), daemon=True).start()
        server = Server(sock, inbox)
        server.serve()
        code = 0
    except (EOFError, OSError):
        pass  # nobody is at the other end
    except ProtocolError as error:
        print(f"the bridge: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Simulators crash or wait while an interpreter is taken down around them.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv)
