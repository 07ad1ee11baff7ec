"""Lets one call of a forked command fail that changes files below a folder, or end it there.

`io_faults.c` is built with the system's C compiler and preloaded, so that calls of libraries in C,
C++ and Rust count, too.
"""

import contextlib
import ctypes
import errno
import functools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from vla.data import video_writer
from vla.utils import video

SOURCE = Path(__file__).with_name("io_faults.c")
CALLS = ("write", "sync", "rename", "create", "remove")
"""Calls that are told apart, in the order of io_faults.c."""
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True)
class Kind:
    """What fails, and how."""

    calls: tuple[str, ...]
    """Calls that are counted."""
    error: int
    """Error number of the failed call; 0: SIGKILL instead."""
    for_ever: bool = False
    """Whether all later calls fail, too."""
    hook: Callable[[int], None] | None = None
    """Lets the n-th call of a kind in Python fail instead; runs in the child, which it changes."""


ENCODED = multiprocessing.RawValue("l")
"""Frames encoded by the last child."""
ALLOCATIONS = 3_000_000
"""Allocations of Python objects of which one fails."""


def _fail_encode(at: int) -> None:
    """Let the encoder have no memory for the `at`-th frame, from 1; 0: only count."""

    class Frames:
        @staticmethod
        def from_ndarray(*args: Any, **options: Any) -> Any:
            ENCODED.value += 1
            if ENCODED.value == at:
                raise MemoryError("no memory for a frame")
            return av.VideoFrame.from_ndarray(*args, **options)

    class Library:
        VideoFrame = Frames

        def __getattr__(self, name: str) -> Any:
            return getattr(av, name)

    video.av = video_writer.av = Library()


def _fail_allocation(at: int) -> None:
    """Let the `at`-th allocation of a Python object from now fail."""
    if at:
        import _testcapi

        _testcapi.set_nomemory(at, at + 1)


KINDS = {
    "full disk": Kind(("write", "create"), errno.ENOSPC, for_ever=True),
    "write": Kind(("write",), errno.EIO),
    "sync": Kind(("sync",), errno.EIO),
    "rename": Kind(("rename",), errno.EIO),
    "create": Kind(("create",), errno.EACCES),
    "remove": Kind(("remove",), errno.EIO),
    "encode": Kind((), errno.ENOMEM, hook=_fail_encode),
    "memory": Kind((), errno.ENOMEM, hook=_fail_allocation),
    "kill": Kind(CALLS, 0),
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; minus the signal's number if one ended it."""
    calls: int
    """Calls that were counted."""
    failed: int
    """Calls that failed."""
    said: str
    """What it wrote to stderr."""
    seconds: float


def preload(folder: Path) -> None:
    """Replace this process by one with the library preloaded, unless it is.

    Raises:
        ValueError: there is no C compiler, or it refuses the source.
    """
    library = folder / "io_faults.so"
    if os.environ.get(PRELOAD) == str(library):
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ValueError("no C compiler: got neither cc nor gcc; install gcc (Debian: gcc)")
    flags = ["-O1", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [compiler, *flags, "-o", str(library), str(SOURCE), "-ldl"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"{SOURCE.name}: the compiler refuses it: {done.stderr[-300:]}")
    os.execve(sys.executable, sys.orig_argv, {**os.environ, PRELOAD: str(library)})


def run(
    call: Callable[[], int], root: Path, log: Path, kind: Kind | None = None, at: int = 0,
    timeout_s: float = 300.0, count: Sequence[str] = CALLS,
) -> Ended:  # fmt: skip
    """Fork, call, and let the `at`-th counted call below `root` fail.

    Args:
        call: Returns an exit code.
        root: Folder; without links.
        log: File for what it prints.
        kind: What fails; None: nothing, and `count` is counted.
        at: Which call, from 1.
        timeout_s: Time after which it is killed.
        count: Calls that are counted if nothing fails.
    """
    library = ctypes.CDLL(None)
    counted = kind.calls if kind else count
    bits = sum(1 << CALLS.index(name) for name in counted)
    library.faults_arm(
        str(root).encode(), bits, ctypes.c_long(at if kind else 0), kind.error if kind else 0,
        int(kind.for_ever) if kind else 0,
    )  # fmt: skip
    ENCODED.value = 0
    begin = time.monotonic()
    process = os.fork()
    if not process:
        _child(call, log, functools.partial(kind.hook, at) if kind and kind.hook else None)
    code = _wait(process, begin + timeout_s)
    library.faults_disarm()
    library.faults_counted.restype = library.faults_failed.restype = ctypes.c_long
    return Ended(
        code=code, calls=library.faults_counted(), failed=library.faults_failed(),
        said=log.read_text(errors="replace"), seconds=time.monotonic() - begin,
    )  # fmt: skip


def _child(call: Callable[[], int], log: Path, hook: Callable[[], None] | None) -> None:
    os.setpgid(0, 0)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 99
    try:
        if hook:
            hook()
        code = call()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int, deadline: float) -> int:
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # its own children end with it
    return os.waitstatus_to_exitcode(status)
