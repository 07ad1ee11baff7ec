"""Writes files and folders so that a reader, a kill or a full disk finds the old or the new one."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vla.utils.interrupted import Interrupted

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux's fcntl.h and fs.h."""


@contextlib.contextmanager
def claim(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of an output while it is written; the system releases it on a kill.

    The lock is the file `.NAME.lock` next to `path`, and is deleted at the end.

    Raises:
        ValueError: another process holds it, and `wait` is False.
    """
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file stands where the folder should be
        raise NotADirectoryError(
            errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename
        ) from error
    name = path.with_name(f".{path.name}.lock")
    with _lock(name, wait) as held:
        if not held:
            raise ValueError(f"{path}: another process writes it; wait until it ends, or stop it")
        try:
            yield
        finally:
            name.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(name: Path, wait: bool) -> Iterator[bool]:
    """Open and lock a file; False if another process holds the lock."""
    while True:
        with name.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            # The process that held it may have deleted the file since it was opened here.
            if name.exists() and os.path.samestat(os.fstat(file.fileno()), name.stat()):
                yield True
                return


@contextlib.contextmanager
def parsing(name: Path | str, advice: str = "copy it again, or repair it") -> Iterator[None]:
    """Turn whatever a parser raises for the content of a file into a ValueError that names it.

    Errors that name it already, or of this machine (a missing package, no such file), stay.
    """
    try:
        yield
    except (ImportError, Interrupted):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:500]
        if isinstance(error, (ValueError, OSError)) and (str(name) in text or _of_system(error)):
            raise
        what = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
        raise ValueError(f"{name}: damaged ({what}); {advice}") from error


def _of_system(error: Exception) -> bool:
    """Return whether the system refused a file, which says nothing about its content."""
    return isinstance(error, OSError) and error.errno in errno.errorcode and bool(error.filename)


def write_text(path: Path, text: str) -> None:
    """Replace a file by one rename, also through a power cut; if that fails, the old one stays."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a file by one with `value`, JSON types, in it."""
    write_text(path, json.dumps(value) + "\n")


def link(file: Path, target: Path) -> None:
    """Link a file, or copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def temporary_of(path: Path) -> Path:
    """Return where this process writes a folder until `publish` gives it the name `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def leftovers(path: Path) -> list[Path]:
    """Return what killed processes had begun to write for `path`, and only for that.

    Another folder in the same place may be called NAME.SOMETHING and be written right now.
    """
    pattern = re.compile(re.escape(f".{path.name}.") + r"\d+\.tmp")
    return [place for place in path.parent.iterdir() if pattern.fullmatch(place.name)]


def clear_leftovers(path: Path) -> None:
    """Delete what killed processes had begun to write for `path`, which is claimed."""
    for place in leftovers(path):
        shutil.rmtree(place)


def publish(temporary: Path, path: Path) -> None:
    """Flush a finished folder to disk and give it its name: it now survives a power cut."""
    flush(temporary)
    temporary.rename(path)
    sync(path.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system cannot.

    Raises:
        OSError: the system can, and failed.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # of Linux
    if rename is None:
        return False
    if not rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):  # not on this file system
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def flush(folder: Path) -> None:
    """Flush a folder and all files in it to disk."""
    for place, _, names in os.walk(folder):
        for name in [*(os.path.join(place, n) for n in names), place]:
            sync(name)


def sync(name: str | Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
