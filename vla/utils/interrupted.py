"""Ctrl-C and SIGTERM in long runs; `vla.cli` turns `Interrupted` into a sentence and exit code."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


class Interrupted(Exception):
    """Ctrl-C or SIGTERM after progress was saved; the same command resumes."""


@contextmanager
def stop_requests(second: Callable[[], BaseException]) -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event to check between steps; a second signal raises `second`
    at once, for example during an evaluation. In other threads than the main one nothing is set.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise second()
        stopped.set()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT while child processes start; they inherit the mask.

    Ctrl-C reaches the whole process group, and only this process answers it. The resource tracker
    lifts the mask when it starts, so it starts first.
    """
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
