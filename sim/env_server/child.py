"""A worker's process as the parent holds it: started with few variables, and always ended.

Its output comes through a pipe, its heartbeats through a page of memory. A pipe that only the
parent holds open ends the worker with the parent.
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

from sim.env_server import worker

WORKER = Path(worker.__file__)
TAIL_BYTES = 4000
"""Length of the end of a worker's output that errors show."""
CLOSE_S = 10.0
"""Seconds that a worker may take to close its simulator before it is killed."""

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "DISPLAY",
    "WAYLAND_DISPLAY", "XAUTHORITY", "LD_LIBRARY_PATH", "MUJOCO_GL", "PYOPENGL_PLATFORM",
    "WARP_CACHE_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "LP_NUM_THREADS", "GOMP_SPINCOUNT", "ACCEPT_EULA", "PRIVACY_CONSENT", "ISAAC_PATH",
    "CARB_APP_PATH", "EXP_PATH",
)  # fmt: skip
"""Variables that a worker inherits, with those that begin with one of `INHERITED_PREFIXES`."""
INHERITED_PREFIXES = ("LC_", "XDG_", "CUDA_", "NVIDIA_", "EGL_", "VK_", "MESA_", "LIBGL_", "OMNI_")
DEFAULTS = {
    "MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
"""Variables that a worker gets if the parent has none: offline, no window, one thread each; Mesa's
threads slow small images down."""


class Child:
    """A process and its connections to the parent."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", sock: socket.socket, log: int, lifeline: int
    ) -> None:
        self.process, self.sock, self.log, self.lifeline = process, sock, log, lifeline
        self.beats: np.ndarray = np.zeros(1, np.uint64)
        self.polite = True
        """Whether to ask it to close before it is killed."""
        self._tail = b""
        self.inbox = worker.Inbox(sock)
        self.poller = select.poll()
        self.poller.register(sock, select.POLLIN)
        self.poller.register(log, select.POLLIN)

    def drain(self) -> None:
        """Read what the simulator has printed, so that it never waits for the parent."""
        while True:
            try:
                output = os.read(self.log, 1 << 16)
            except (BlockingIOError, OSError):
                return
            if not output:
                # All have closed their ends: every later poll would return at once.
                self.poller.unregister(self.log)
                self.poller.register(self.log, 0)
                return
            self._tail = (self._tail + output)[-TAIL_BYTES:]

    def last_output(self) -> str:
        """Return the end of its output on separate lines."""
        text = self._tail.decode(errors="replace").strip()
        return f":\n{text}" if text else ": none"


def anonymous_memory(size: int) -> int:
    """Return an open file of `size` bytes without a name, freed with its last holder.

    Raises:
        ValueError: there is not enough memory.
    """
    # The system overcommits memory, and kills a process when it runs out.
    free = _free_bytes()
    if size > free:
        raise ValueError(
            f"arrays: got {size / 2**20:.0f} MiB of shared memory, expected less than the "
            f"{free / 2**20:.0f} MiB that are free; use fewer environments or smaller images"
        )
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("mneme-env-server", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    os.ftruncate(file, size)
    return file


def _free_bytes() -> int:
    """Return the available memory in bytes, or all memory if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a worker: few, since this Python's would mislead its own."""
    inherited = {
        k: v for k, v in os.environ.items() if k in INHERITED or k.startswith(INHERITED_PREFIXES)
    }
    ours = [str(place) for place in (Path(sys.prefix), Path(sys.prefix).resolve())]
    libraries = inherited.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    others = [p for p in libraries if p and not p.startswith(tuple(ours))]
    if others:
        inherited["LD_LIBRARY_PATH"] = os.pathsep.join(others)
    return {**DEFAULTS, **inherited, **(extra or {})}


def start(python: Path, environ: Mapping[str, str] | None) -> Child:
    """Start a worker and send it the page of its heartbeats and its end of the lifeline."""
    ours, theirs = socket.socketpair()
    log_read, log_write = os.pipe()
    life_read, life_write = os.pipe()
    os.set_blocking(log_read, False)
    page = anonymous_memory(worker.CONTROL_BYTES)
    try:
        process = subprocess.Popen(
            # Not resolved: a virtual environment's interpreter is a link, and its path matters.
            [str(Path(python).absolute()), str(WORKER), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            pass_fds=[theirs.fileno()],
            env=child_environment(environ),
            # Ctrl-C reaches the parent alone, and the whole session can be ended.
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
    """End a worker and all it started, and free its resources."""
    if os.getpid() != owner:
        return  # a fork of this process does not own the worker
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
    """Ask the adapter to close, and wait until the process has ended, at most `CLOSE_S`."""
    try:
        # An id above all that were sent.
        child.sock.sendall(worker.encode({"id": sys.maxsize, "kind": "close"}))
    except OSError:
        return
    deadline = time.monotonic() + CLOSE_S
    while child.process.poll() is None and time.monotonic() < deadline:
        child.poller.poll(10.0)
        child.drain()


def describe_exit(code: int) -> str:
    """Describe how a process ended, from its exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
