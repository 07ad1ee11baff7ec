"""The parent's side of the process bridge: starts a worker, calls it, and ends it whatever happens.

A worker that dies or hangs becomes one clear error, and nothing of it remains: no process, no
memory, no open file. Restarting is the caller's business.
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

from sim.bridge import worker
from sim.bridge.child import Child, anonymous_memory, code_words, end, start

SLICE_S = 0.2
LONGEST_SLICE_S = 1.0
"""What a wait counts for at most: a parent that was itself stopped does not blame its worker."""


class BridgeError(RuntimeError):
    """A worker cannot be used any more, or its host refused."""


class WorkerDied(BridgeError):
    """The worker's process ended, or spoke what is no message; it is closed."""


class WorkerHung(BridgeError):
    """The worker gave no sign of life, or a call took too long; it was killed."""


class HostError(BridgeError):
    """The host raised an error; the worker lives on, but for one that could not open its host."""

    def __init__(self, where: str, error: Mapping[str, Any]) -> None:
        """Carry an error over from the other interpreter.

        Args:
            where: Which simulator was doing what.
            error: What `sim.bridge.worker.describe` made of it.
        """
        self.kind = str(error.get("kind", "Error"))
        """Name of the exception, such as "ValueError"."""
        self.sentence = str(error.get("sentence", ""))
        """What it said, in one line."""
        self.traceback = str(error.get("traceback", ""))
        super().__init__(f"{where}: {self.kind}: {self.sentence}\n{self.traceback}".rstrip())


class Process:
    """One worker process with one host: commands go out as messages, arrays are shared memory."""

    def __init__(
        self,
        python: Path,
        host: Path,
        options: dict[str, Any],
        *,
        open_s: float = 300.0,
        call_s: float = 120.0,
        silent_s: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start a worker and open its host; it may be called from any thread.

        Args:
            python: An interpreter from 3.8 on that has numpy, or a script that starts one.
            host: File with `open_host`: see `sim.hosts`.
            options: Of the host; JSON.
            open_s: Seconds that opening may take.
            call_s: Seconds that one call may take.
            silent_s: Seconds without a heartbeat after which the worker counts as hung: it is
                stopped, or a simulator lets no thread of Python run.
            environ: Variables for the worker beside `KEPT` and `GIVEN`.

        Raises:
            ValueError: there is no such interpreter or file.
            HostError: the host refused.
            WorkerDied: the worker ended while it opened, numpy is missing perhaps.
            WorkerHung: it took too long.
        """
        for what, file in (("python", python), ("host", host)):
            if not Path(file).is_file():
                raise ValueError(f"{what}: got {file}, expected a file")
        self._name = Path(host).stem
        self._python = python
        self._call_s, self._silent_s = call_s, silent_s
        self._numbers = itertools.count(1)
        self._pending: tuple[int, str] | None = None
        self._limit_s = open_s
        self.arrays: dict[str, np.ndarray] = {}
        """The shared arrays by name; empty once the worker is closed."""
        self.taken_s = 0.0
        """Seconds that the host itself took for the last call: the rest is the bridge's."""
        self.announced: Any = None
        """What the host says of itself."""
        self._child = start(python, environ)
        # Also runs when the object is garbage or the interpreter ends.
        self._end = weakref.finalize(self, end, self._child, os.getpid())
        try:
            self._open({"host": str(Path(host).resolve()), "options": options})
        except BaseException:
            self._kill()
            raise
        self._limit_s = call_s

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._child.process.pid

    @property
    def closed(self) -> bool:
        """Whether it can be called no more."""
        return not self._end.alive

    def call(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Have the host do one thing and return its answer.

        Raises:
            ValueError: the arguments are no JSON, or longer than a message may be.
            HostError: the host raised an error; the next call finds the worker alive.
            WorkerDied: the worker ended; it is closed.
            WorkerHung: it gave no sign of life or took too long; it is closed.
        """
        self.send(command, arguments)
        return self.receive()

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Begin a call, so that several workers can be at work at once; `receive` ends it.

        Raises:
            ValueError: as `call` does.
            WorkerDied: the worker is gone.
        """
        self._send("call", command, {"command": command, "arguments": arguments or {}})

    def receive(self) -> Any:
        """Wait for the answer to what was sent, and return it.

        Raises:
            BridgeError: as `call` does.
        """
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
            refused = reply["error"] if isinstance(reply["error"], dict) else {}
            raise HostError(self._where(doing), refused)
        self.taken_s = float(reply.get("seconds", 0.0))
        return reply.get("result")

    def close(self) -> None:
        """End the worker: at once if it is at work, else when it has closed its simulator."""
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
        self._child.polite = False  # a worker that is at work cannot listen
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
            raise WorkerDied(f"{self._where('opening')}: it announced nonsense: {error}") from error
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
        """Return the body of the next message, watching that the worker is well."""
        watch = _Watch(self._child, self._limit_s, self._silent_s)
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
            how = f"ended with {code_words(code)}"
        self._kill()
        return WorkerDied(
            f"{self._where(doing)}: its process {how}; its last words follow, reset starts it anew"
            f"{self._child.last_words()}"
        )

    def _hung(self, doing: str, why: str) -> WorkerHung:
        self._kill()
        return WorkerHung(
            f"{self._where(doing)}: {why}, so its process was killed; its last words follow, "
            f"reset starts it anew{self._child.last_words()}"
        )

    def _kill(self) -> None:
        self._child.polite = False
        self.close()


class _Watch:
    """Waits for a worker's answer in slices, and says when waiting has become pointless."""

    def __init__(self, child: Child, limit_s: float, silent_s: float) -> None:
        self._child, self._limit_s, self._silent_s = child, limit_s, silent_s
        self._spent_s = self._quiet_s = 0.0
        self._beats = int(child.beats[0])
        self.why = ""
        """Why it is pointless; empty while it is not."""

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
        # Before the first one an interpreter starts; how long that may take, `open_s` says.
        self._quiet_s = 0.0 if beats != before or not beats else self._quiet_s + passed
        if self._quiet_s > self._silent_s:
            self.why = (
                f"it gave no sign of life for {self._silent_s:g} s (stopped, or stuck where no "
                "thread of Python runs)"
            )
        elif self._spent_s > self._limit_s:
            self.why = f"it took longer than {self._limit_s:g} s"
        return False
