"""Real-time options of a node on Linux: priority of its loop, its CPUs, its memory in RAM.

Python runs one thread at a time: a thread with priority still waits until another lets it run.
"""

import contextlib
import ctypes
import os
from dataclasses import dataclass

from robot_bridge.launching.node_settings import check, ranged

MCL_CURRENT, MCL_FUTURE = 1, 2
"""Flags of mlockall: memory that is mapped now, and memory that will be."""
MOST_CPUS = 8192
"""Most CPUs that Linux knows."""


@dataclass(frozen=True, kw_only=True)
class RealtimeOptions:
    """Parameters of a node with a real-time loop; the defaults change nothing."""

    realtime_priority: int = ranged(0, 0, 99)
    """Priority of the thread under SCHED_FIFO; 0 leaves the scheduler as it is."""
    cpu_affinity: tuple[str, ...] = ()
    """CPUs the process may run on, such as 2 or 3; all if empty."""
    lock_memory: bool = False
    """Whether the process's memory is locked into RAM (mlockall)."""

    def __post_init__(self) -> None:
        check(self)


def apply_to_process(options: RealtimeOptions) -> None:
    """Set the CPUs of all threads and lock the memory; threads that start later inherit both.

    With a finite memlock limit that suffices now, the process may run out of memory later.

    Raises:
        ValueError: there is no such CPU, or the system refuses.
    """
    if options.cpu_affinity:
        cpus = {str(cpu): cpu for cpu in sorted(_available_cpus())}
        unknown = [name for name in options.cpu_affinity if name not in cpus]
        if unknown:
            raise ValueError(
                f"cpu_affinity: got CPU {unknown[0]!r}, expected one or more of {', '.join(cpus)}"
            )
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), {cpus[name] for name in options.cpu_affinity})
    if options.lock_memory:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
            raise ValueError(
                f"lock_memory: the system refused ({os.strerror(ctypes.get_errno())}); set memlock "
                "to unlimited in /etc/security/limits.conf and log in again, or leave it false"
            )


def apply_to_thread(options: RealtimeOptions) -> None:
    """Give the calling thread its priority; Linux takes a process id of 0 for the calling thread.

    Threads that it starts inherit the priority.

    Raises:
        ValueError: the system refuses.
    """
    priority = options.realtime_priority
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        except OSError as error:
            raise ValueError(
                f"realtime_priority: the system refused {priority} ({error.strerror}); set rtprio "
                f"to {priority} or more in /etc/security/limits.conf and log in again, or leave it "
                "at 0"
            ) from error


def _available_cpus() -> set[int]:
    """Return the CPUs the process may be given; isolated ones too, which it has to ask for."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(MOST_CPUS))  # Linux leaves out those that there are not
    try:
        return os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)
