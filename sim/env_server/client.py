"""The client of an env server: starts a worker, calls it, and ends it whatever happens.

A worker that dies or hangs raises one clear error and leaves no process, memory or open file. The
caller restarts it.
"""

import itertools
import mmap
import os
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.env_server import worker
from sim.env_server.child import Child, anonymous_memory, describe_exit, end, start

SLICE_S = 0.2
LONGEST_SLICE_S = 1.0
"""Longest time that a wait counts for: a parent that was stopped does not blame its worker."""


def check_timeouts(startup_timeout_s: float, step_timeout_s: float) -> None:
    """Raise ValueError unless both settings of a backend are above 0."""
    limits = {"startup_timeout_s": startup_timeout_s, "step_timeout_s": step_timeout_s}
    for name, value in limits.items():
        if not value > 0.0:  # NaN is not
            raise ValueError(f"backend.{name}: got {value}, expected above 0")


class EnvServerError(RuntimeError):
    """A worker cannot be used any more, or its adapter raised an error."""


class WorkerDied(EnvServerError):
    """The worker's process ended or sent an invalid message; it is closed."""


class WorkerHung(EnvServerError):
    """The worker sent no heartbeat, or a call took too long; it was killed."""


class AdapterError(EnvServerError):
    """The adapter raised an error; the worker lives on unless its adapter did not open."""

    def __init__(self, where: str, error: Mapping[str, Any]) -> None:
        """Carry over an error that `sim.env_server.worker.describe` has described."""
        self.kind = str(error.get("kind", "Error"))
        """Name of the exception, such as "ValueError"."""
        self.sentence = str(error.get("sentence", ""))
        """Its message in one line."""
        self.traceback = str(error.get("traceback", ""))
        super().__init__(f"{where}: {self.kind}: {self.sentence}\n{self.traceback}".rstrip())


class Process:
    """A worker process with one adapter: commands are messages, arrays are shared memory."""

    def __init__(
        self,
        python: Path,
        adapter: Path,
        options: dict[str, Any],
        *,
        startup_timeout_s: float = 300.0,
        step_timeout_s: float = 120.0,
        heartbeat_timeout_s: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start a worker and open its adapter; any thread may call it.

        Args:
            python: An interpreter from 3.8 on that has numpy, or a script that starts one.
            adapter: File with `open_adapter`: see `sim.adapters`.
            options: Options of the adapter; JSON.
            startup_timeout_s: Seconds that opening may take.
            step_timeout_s: Seconds that one call may take.
            heartbeat_timeout_s: Seconds without a heartbeat after which the worker counts
                as hung: it is stopped, or a simulator lets no Python thread run.
            environ: Variables of the worker besides those of `child.child_environment`.

        Raises:
            ValueError: there is no such interpreter or file.
            AdapterError: the adapter raised an error.
            WorkerDied: the worker ended while it opened; numpy may be missing.
            WorkerHung: it took too long.
        """
        for what, file in (("python", python), ("adapter", adapter)):
            if not Path(file).is_file():
                raise ValueError(f"{what}: got {file}, expected a file")
        self._name = Path(adapter).stem
        self._python = python
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._numbers = itertools.count(1)
        self._pending: tuple[int, str] | None = None
        self._limit_s = startup_timeout_s
        self.arrays: dict[str, np.ndarray] = {}
        """The shared arrays by name; empty once the worker is closed."""
        self.taken_s = 0.0
        """Seconds that the adapter itself took for the last call."""
        self.announced: Any = None
        """The adapter's description of its environments."""
        self._child = start(python, environ)
        # Also runs when the object is garbage or the interpreter ends.
        self._end = weakref.finalize(self, end, self._child, os.getpid())
        try:
            self._open({"adapter": str(Path(adapter).resolve()), "options": options})
        except BaseException:
            self._kill()
            raise
        self._limit_s = step_timeout_s

    @property
    def pid(self) -> int:
        """Id of the started process."""
        return self._child.process.pid

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return not self._end.alive

    def call(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a command of the adapter and return its result.

        Raises:
            ValueError: the arguments are not JSON, or too long for a message.
            AdapterError: the adapter raised an error; the next call finds the worker alive.
            WorkerDied: the worker ended; it is closed.
            WorkerHung: it sent no heartbeat or took too long; it is closed.
        """
        self.send(command, arguments)
        return self.receive()

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Begin a call, so that several workers can work at once; it raises as `call` does."""
        self._send("call", command, {"command": command, "arguments": arguments or {}})

    def receive(self) -> Any:
        """Wait for the result of the last `send`, and return it; it raises as `call` does."""
        assert self._pending is not None, "receive without send"
        number, doing = self._pending
        try:
            reply = worker.decode(self._read(doing))
        except (worker.ProtocolError, ValueError) as error:
            self._kill()
            raise WorkerDied(f"{self._where(doing)}: it broke the protocol: {error}") from error
        except BaseException:
            self._kill()
            raise
        self._pending = None
        if reply.get("id") != number:
            self._kill()
            raise WorkerDied(
                f"{self._where(doing)}: it broke the protocol: got an answer to "
                f"{reply.get('id')!r}, expected one to {number}"
            )
        self._child.polite = True
        if "error" in reply:
            failure = reply["error"] if isinstance(reply["error"], dict) else {}
            raise AdapterError(self._where(doing), failure)
        self.taken_s = float(reply.get("seconds", 0.0))
        return reply.get("result")

    def close(self) -> None:
        """End the worker: at once if it is busy, else after it has closed its simulator."""
        self.arrays.clear()
        self._pending = None
        self._end()

    def _send(
        self, kind: str, doing: str, content: dict[str, Any], files: Sequence[int] = ()
    ) -> None:
        if self.closed:
            raise WorkerDied(f"{self._where(doing)}: it is closed; start a new one")
        assert self._pending is None, "send before the answer to the last was received"
        number = next(self._numbers)
        message = worker.encode({"id": number, "kind": kind, **content})
        self._pending = (number, doing)
        self._child.polite = False  # a busy worker cannot listen
        try:
            if files:
                worker.send_files(self._child.sock, message, files)
            else:
                self._child.sock.sendall(message)
        except OSError as error:
            raise self._died(doing) from error
        except BaseException:
            self._kill()
            raise

    def _open(self, where: dict[str, Any]) -> None:
        self._send("open", "opening", where)
        opened = self.receive()
        try:
            self.announced = opened["announced"]
            fields = worker.check_fields(opened["fields"])
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerDied(
                f"{self._where('opening')}: its description is invalid: {error}"
            ) from error
        self._bind(fields)

    def _bind(self, fields: worker.Fields) -> None:
        size = worker.total_bytes(fields)
        file = anonymous_memory(size)
        try:
            self._send("bind", "opening", {}, [file])
            self.receive()
            self.arrays.update(worker.map_arrays(mmap.mmap(file, size), fields))
        finally:
            os.close(file)

    def _read(self, doing: str) -> bytes:
        """Return the body of the next message while watching the worker."""
        watch = _Watchdog(self._child, self._limit_s, self._heartbeat_timeout_s)
        while (body := self._child.inbox.take()) is None:
            if watch.wait():
                try:
                    self._child.inbox.fill()
                except (EOFError, OSError) as error:
                    raise self._died(doing) from error
            elif self._child.process.poll() is not None:
                raise self._died(doing)
            elif watch.why:
                raise self._hung(doing, watch.why)
        return body

    def _where(self, doing: str) -> str:
        return f"simulator {self._name!r} ({self._python}), {doing}"

    def _died(self, doing: str) -> WorkerDied:
        try:
            code = self._child.process.wait(1.0)
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        else:
            how = f"ended with {describe_exit(code)}"
        self._kill()
        return WorkerDied(
            f"{self._where(doing)}: its process {how}; its last output follows, reset "
            f"starts it again{self._child.last_output()}"
        )

    def _hung(self, doing: str, why: str) -> WorkerHung:
        self._kill()
        return WorkerHung(
            f"{self._where(doing)}: {why}, so its process was killed; its last output follows, "
            f"reset starts it again{self._child.last_output()}"
        )

    def _kill(self) -> None:
        self._child.polite = False
        self.close()


class _Watchdog:
    """Waits for a worker's answer in slices, and says when to give up."""

    def __init__(self, child: Child, limit_s: float, heartbeat_timeout_s: float) -> None:
        self._child, self._limit_s, self._heartbeat_timeout_s = child, limit_s, heartbeat_timeout_s
        self._spent_s = self._quiet_s = 0.0
        self._beats = int(child.beats[0])
        self.why = ""
        """Reason to give up; empty while there is none."""

    def wait(self) -> bool:
        """Wait for one slice; True if the socket has something to read."""
        begin = time.monotonic()
        ready = self._child.poller.poll(SLICE_S * 1000.0)
        for file, _ in ready:
            if file == self._child.sock.fileno():
                return True
        if ready:
            self._child.drain()
        passed = min(time.monotonic() - begin, LONGEST_SLICE_S)
        beats, before = int(self._child.beats[0]), self._beats
        self._beats = beats
        self._spent_s += passed
        # Before the first heartbeat the interpreter starts, within `startup_timeout_s`.
        self._quiet_s = 0.0 if beats != before or not beats else self._quiet_s + passed
        if self._quiet_s > self._heartbeat_timeout_s:
            self.why = (
                f"it sent no heartbeat for {self._heartbeat_timeout_s:g} s (stopped, or stuck "
                "where no Python thread runs)"
            )
        elif self._spent_s > self._limit_s:
            self.why = f"it took longer than {self._limit_s:g} s"
        return False
