"""Writes files and folders so that a reader, a kill or a full disk finds the old or the new one."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace a file by one rename; if that fails, the old one stays as it was."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text)
        temporary.replace(path)
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


def publish(temporary: Path, path: Path) -> None:
    """Flush a finished folder to disk and give it its name: it now survives a power cut."""
    flush(temporary)
    temporary.rename(path)
    _flush(path.parent)


def flush(folder: Path) -> None:
    """Flush a folder and all files in it to disk."""
    for place, _, names in os.walk(folder):
        for name in [*(os.path.join(place, n) for n in names), place]:
            _flush(name)


def _flush(name: str | Path) -> None:
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
