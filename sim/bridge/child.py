"""A worker's process as the parent holds it: started with few of our variables, and ended for good.

What it prints goes through a pipe of which the end is kept, its heartbeats come through a page of
memory, and a pipe that only we hold open ties its life to ours.
"""

import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sim.bridge import worker

WORKER = Path(worker.__file__)
TAIL_BYTES = 4000
"""How much of a worker's last words is kept."""
CLOSE_S = 10.0
"""How long a worker may take to close its simulator before it is killed."""

KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "DISPLAY",
    "WAYLAND_DISPLAY", "XAUTHORITY", "LD_LIBRARY_PATH", "MUJOCO_GL", "PYOPENGL_PLATFORM",
    "WARP_CACHE_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "LP_NUM_THREADS", "GOMP_SPINCOUNT", "ACCEPT_EULA", "PRIVACY_CONSENT", "ISAAC_PATH",
    "CARB_APP_PATH", "EXP_PATH",
)  # fmt: skip
"""Variables that a worker has from us, with those that begin with one of `KEPT_PREFIXES`."""
KEPT_PREFIXES = ("LC_", "XDG_", "CUDA_", "NVIDIA_", "EGL_", "VK_", "MESA_", "LIBGL_", "OMNI_")
GIVEN = {
    "MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
"""Variables that a worker has where we have none: offline, no window, one thread for each; and
Mesa's own threads slow small pictures down."""


class Child:
    """A process and what connects us with it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", sock: socket.socket, log: int, lifeline: int
    ) -> None:
        self.process, self.sock, self.log, self.lifeline = process, sock, log, lifeline
        self.beats: np.ndarray = np.zeros(1, np.uint64)
        self.polite = True
        """Whether it is asked to close before it is killed."""
        self._tail = b""
        self.inbox = worker.Inbox(sock)
        self.poller = select.poll()
        self.poller.register(sock, select.POLLIN)
        self.poller.register(log, select.POLLIN)

    def drain(self) -> None:
        """Take what the simulator has printed, so that it never waits for us to read it."""
        while True:
            try:
                words = os.read(self.log, 1 << 16)
            except (BlockingIOError, OSError):
                return
            if not words:
                # All have closed their ends: a poll would return at once for evermore.
                self.poller.unregister(self.log)
                self.poller.register(self.log, 0)
                return
            self._tail = (self._tail + words)[-TAIL_BYTES:]

    def last_words(self) -> str:
        """Return the end of what it printed, on lines of their own."""
        text = self._tail.decode(errors="replace").strip()
        return f":\n{text}" if text else ": none"


def anonymous_memory(size: int) -> int:
    """Return an open file of `size` bytes that has no name and goes with its last holder.

    Raises:
        ValueError: there is not that much memory.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("mneme-bridge", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    try:
        # Reserved now: a page that is missing later kills whoever touches it.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
    except OSError as error:
        os.close(file)
        raise ValueError(
            f"arrays: no room for {size / 2**20:.0f} MiB of shared memory ({error.strerror}); use "
            "fewer environments or smaller images"
        ) from error
    return file


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a worker: few of ours, since our Python's would mislead its own."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)}
    ours = [str(place) for place in (Path(sys.prefix), Path(sys.prefix).resolve())]
    libraries = kept.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    others = [p for p in libraries if p and not p.startswith(tuple(ours))]
    if others:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(others)
    return {**GIVEN, **kept, **(extra or {})}


def start(python: Path, environ: Mapping[str, str] | None) -> Child:
    """Start a worker and hand it the page of its heartbeats and its end of the lifeline."""
    ours, theirs = socket.socketpair()
    log_read, log_write = os.pipe()
    life_read, life_write = os.pipe()
    os.set_blocking(log_read, False)
    page = anonymous_memory(worker.CONTROL_BYTES)
    try:
        process = subprocess.Popen(
            # Not resolved: a virtual environment's interpreter is a link, and lives by its place.
            [str(Path(python).absolute()), str(WORKER), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            pass_fds=[theirs.fileno()],
            env=child_environment(environ),
            # Ctrl-C reaches us alone, and all that it starts can be ended with it.
            start_new_session=True,
        )
        child = Child(process, ours, log_read, life_write)
        child.beats = np.frombuffer(mmap.mmap(page, worker.CONTROL_BYTES), np.uint64, 1)
        worker.send_files(ours, worker.encode({"kind": "hello"}), [page, life_read])
        return child
    except OSError as error:
        ours.close()
        os.close(log_read)
        os.close(life_write)
        raise ValueError(f"python: cannot start {python}: {error.strerror}") from error
    finally:
        theirs.close()
        for file in (log_write, life_read, page):
            os.close(file)


def end(child: Child, owner: int) -> None:
    """End a worker, and all it started, and let go of what we hold of it."""
    if os.getpid() != owner:
        return  # a fork of ours has copies of the descriptors, but the worker is not its own
    try:
        if child.polite and child.process.poll() is None:
            _ask_to_close(child)
    finally:
        # The group may outlive its leader: a simulator may have started helpers.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        child.drain()
        child.sock.close()
        os.close(child.log)
        os.close(child.lifeline)
        child.beats = np.zeros(1, np.uint64)


def _ask_to_close(child: Child) -> None:
    """Have the host close, and wait for a while until the process has ended."""
    try:
        # An id that nothing can have been sent under yet.
        child.sock.sendall(worker.encode({"id": sys.maxsize, "kind": "close"}))
    except OSError:
        return
    deadline = time.monotonic() + CLOSE_S
    while child.process.poll() is None and time.monotonic() < deadline:
        child.poller.poll(10.0)
        child.drain()


def code_words(code: int) -> str:
    """Return how a process ended, from its exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
