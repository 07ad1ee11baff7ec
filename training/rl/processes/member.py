"""A process that works for the learner: started, watched, started anew; it ends with the learner.

It writes what it has done to the run's folder and reads everything from there, so that it can be
killed at any moment. Nothing is sent to it but what it is started with.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from safetensors import SafetensorError

from training.rl.config import PracticeConfig, Start
from vla.contracts.config import PluginConfig

TRIES = 5
"""Deaths in a row, without anything finished in between, after which a process is given up."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a process is started with."""

    config: PracticeConfig
    """The run."""
    start: Start
    """What it starts from, and where practice is kept."""
    policy: PluginConfig
    """Configuration of the policy as it practises; an algorithm may have added to it."""
    board: str
    """Name of the board on which weights are published."""


Work = Callable[[Job, Callable[[], None]], None]
"""What a process does: given its job and what it calls now and then as a sign of life."""


class Member:
    """One such process, as the learner sees it.

    Args:
        name: Of what it does, for people.
        work: A function at the top of a module.
        job: What it is started with.
    """

    def __init__(self, name: str, work: Work, job: Job) -> None:
        self.name, self.work, self.job = name, work, job
        self.restarts = 0
        self._context = multiprocessing.get_context("spawn")  # EGL does not survive a fork
        self._beat = self._context.RawValue("d", 0.0)
        self._tries, self._done = 0, -1
        self._pipe: Connection
        self.process: BaseProcess
        self._start_()
        # Also runs when the interpreter ends.
        self.close = weakref.finalize(self, _end, self.__dict__)

    def tend_(self, finished: Callable[[], int]) -> None:
        """Start the process anew if it has died or shows no sign of life.

        Args:
            finished: How much there is by now, to tell a process that only ever dies.

        Raises:
            ValueError: it failed for a reason of its own, or died too often.
        """
        if self.process.exitcode is None:
            silent_s = time.monotonic() - self._beat.value
            if silent_s <= self.job.config.runtime.silent_s:
                return
            reason = f"showed no sign of life for {silent_s:.0f} s"
            self.process.kill()
            self.process.join()
        elif self.process.exitcode == 0:
            return  # there is nothing left to do
        elif self.process.exitcode > 0:
            raise ValueError(f"the {self.name} failed: {self._last_words()}")
        else:
            reason = f"was ended by signal {-self.process.exitcode}"
        done = finished()
        self._tries, self._done = self._tries + 1 if done == self._done else 1, done
        if self._tries > TRIES:
            raise ValueError(
                f"the {self.name} {reason}, {self._tries} times in a row with nothing finished (9 "
                "often means out of memory); the same command goes on from what is there, with "
                "fewer --environments if it happens again"
            )
        print(f"the {self.name} {reason}; started anew, nothing finished is lost", file=sys.stderr)
        self.restarts += 1
        self._pipe.close()
        self._start_()

    def _start_(self) -> None:
        # Ctrl-C reaches the whole process group, and is the learner's alone to answer: a process
        # inherits the mask. The tracker of shared memory lifts it when it starts, so it is first.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._pipe, theirs = self._context.Pipe()
            self._beat.value = time.monotonic()
            self.process = self._context.Process(
                target=_serve, args=(self.work, self.job, theirs, self._beat), daemon=True
            )
            self.process.start()
            theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _last_words(self) -> str:
        try:
            return self._pipe.recv_bytes().decode()
        except EOFError:
            return f"exit code {self.process.exitcode}; what it said is above"


def _end(parts: dict[str, Any]) -> None:
    parts["_pipe"].close()
    parts["process"].kill()
    parts["process"].join()


def _serve(work: Work, job: Job, pipe: Connection, beat: Any) -> None:
    """Work until there is nothing left to do, or the learner is gone."""
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    # Nothing here starts a process. But a lock of the default kind, which is "spawn" here, is
    # missed by the tracker when this process is killed, and zarr's compressor makes one.
    multiprocessing.set_start_method("fork", force=True)

    def alive() -> None:
        beat.value = time.monotonic()

    try:
        work(job, alive)
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
