"""Imports Warp and mujoco_warp without their banners; who simulates with them takes both here."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import warp as wp


def has_driver() -> bool:
    """Return whether NVIDIA's driver is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


wp.config.log_level = wp.LOG_WARNING
# Warp's library writes past Python's stderr that there is no GPU.
with contextlib.nullcontext() if has_driver() else _without_stderr():
    wp.init()

import mujoco_warp as mjw  # noqa: E402

__all__ = ["mjw", "wp"]


def find_device(wanted: str) -> str:
    """Return the Warp device of "auto", "cpu" or "cuda"; "auto" is a GPU where there is one.

    Raises:
        ValueError: a GPU is wanted and there is none.
    """
    available = wp.is_cuda_available()
    if wanted == "cuda" and not available:
        raise ValueError(
            "device: got 'cuda', but Warp finds no NVIDIA GPU here; say 'cpu', or 'auto' for "
            "whatever there is"
        )
    return "cuda:0" if available and wanted != "cpu" else "cpu"
