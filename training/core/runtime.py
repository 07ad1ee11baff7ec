"""Process settings for training: number of CPU threads and reuse of freed memory."""

import ctypes
import sys

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
LARGE_BYTES = 1 << 30
"""More than any tensor of the small preset."""


def prepare(threads: int) -> None:
    """Set the number of CPU threads, and keep freed memory instead of returning it to the system.

    By default glibc maps new pages for every large tensor, which takes a fifth of the time of an
    update on a virtual machine. Without glibc nothing is changed.
    """
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
