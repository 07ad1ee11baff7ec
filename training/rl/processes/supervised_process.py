"""A process that works for the learner: started, watched and restarted; it ends with the learner.

It writes its results to the run's folder and reads everything from there, so that it can be killed
at any moment. It receives nothing but what it is started with.
"""

import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from safetensors import SafetensorError

from training.rl.config import OnlineRLConfig, Start
from vla.contracts.config import PluginConfig
from vla.utils.interrupted import sigint_blocked

MAX_RESTARTS = 5
"""Restarts in a row, with nothing finished in between, after which the run fails."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a process is started with."""

    config: OnlineRLConfig
    start: Start
    """What it starts from, and where rollouts are stored."""
    policy: PluginConfig
    """Configuration of the acting policy; an algorithm may have added to it."""
    board: str
    """Name of the board on which weights are published."""


Work = Callable[[Job, Callable[[], None]], None]
"""What a process does: given its job, and its heartbeat to call now and then."""


class SupervisedProcess:
    """One such process, as the learner sees it; `work` is a function at the top of a module."""

    def __init__(self, name: str, work: Work, job: Job) -> None:
        self.name, self.work, self.job = name, work, job
        self.restarts = 0
        self._context = multiprocessing.get_context("spawn")  # EGL does not survive a fork
        self._beat = self._context.RawValue("d", 0.0)
        self._tries, self._done = 0, -1
        self._pipe: Connection
        self.process: BaseProcess
        self._start()
        # Also runs when the interpreter ends.
        self.close = weakref.finalize(self, _end, self.__dict__)

    def check(self, finished: Callable[[], int]) -> None:
        """Restart the process if it has died or sends no heartbeat; `finished` counts results, to
        recognize a process that only ever dies.

        Raises:
            ValueError: it failed with an error, or died too often.
        """
        if self.process.exitcode is None:
            silent_s = time.monotonic() - self._beat.value
            if silent_s <= self.job.config.runtime.heartbeat_timeout_s:
                return
            reason = f"sent no heartbeat for {silent_s:.0f} s"
            self.process.kill()
            self.process.join()
        elif self.process.exitcode == 0:
            return  # there is nothing left to do
        elif self.process.exitcode > 0:
            raise ValueError(f"the {self.name} failed: {self._error()}")
        else:
            reason = f"was ended by signal {-self.process.exitcode}"
        done = finished()
        self._tries, self._done = self._tries + 1 if done == self._done else 1, done
        if self._tries > MAX_RESTARTS:
            raise ValueError(
                f"the {self.name} {reason}, {self._tries} times in a row with nothing finished (9 "
                "often means out of memory); the same command resumes from what is there, with "
                "fewer --num-envs if it happens again"
            )
        print(f"the {self.name} {reason}; restarted, nothing finished is lost", file=sys.stderr)
        self.restarts += 1
        self._pipe.close()
        self._start()

    def _start(self) -> None:
        with sigint_blocked():
            self._pipe, theirs = self._context.Pipe()
            self._beat.value = time.monotonic()
            self.process = self._context.Process(
                target=_serve, args=(self.work, self.job, theirs, self._beat), daemon=True
            )
            self.process.start()
            theirs.close()

    def _error(self) -> str:
        try:
            return self._pipe.recv_bytes().decode()
        except EOFError:
            return f"exit code {self.process.exitcode}; its output is above"


def _end(parts: dict[str, Any]) -> None:
    parts["_pipe"].close()
    parts["process"].kill()
    parts["process"].join()


def _serve(work: Work, job: Job, pipe: Connection, beat: Any) -> None:
    """Work until there is nothing left to do, or the learner has ended."""
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    # Nothing here starts a process. But a lock of the default kind, which is "spawn" here, is
    # missed by the tracker when this process is killed, and zarr's compressor makes one.
    multiprocessing.set_start_method("fork", force=True)

    def heartbeat() -> None:
        beat.value = time.monotonic()

    try:
        work(job, heartbeat)
    except (OSError, LookupError, RuntimeError, SafetensorError, ValueError) as error:
        pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
        sys.exit(1)


def _end_with(pipe: Connection) -> None:
    """Wait until the other end is closed, by the learner or by its death, and end at once."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        # Everything is written by renames: there is nothing to clear away.
        os._exit(0)
