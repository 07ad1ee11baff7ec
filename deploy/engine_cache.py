"""Engines that took minutes to build, kept in a folder that nobody else may write.

An engine is code for one GPU. It is used only where every part of what it was built from is the
same and its bytes are those that were kept; anything else is built anew.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from vla.contracts import config as configs

VARIABLE = "MNEME_ENGINES"
"""Environment variable that names another folder than the default one."""
OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, kw_only=True)
class Key:
    """Everything an engine depends on."""

    onnx: str
    """SHA-256 of the graph's file."""
    tensorrt: str
    """Version of TensorRT."""
    gpu: str
    """Name of the GPU."""
    capability: tuple[int, int]
    """Its compute capability."""
    system: str
    """Operating system and processor."""
    precision: str
    """Of the graph, as the manifest says."""
    profile: dict[str, tuple[tuple[int, ...], ...]]
    """Least, usual and largest shape of every input that has more than one."""
    flags: tuple[str, ...]
    """Settings of the builder."""

    @property
    def name(self) -> str:
        """Name of its files: a hash of all of the above."""
        return hashlib.sha256(_text(configs.to_json(self)).encode()).hexdigest()[:32]


class Obtained(NamedTuple):
    """An engine."""

    data: bytes
    """Its bytes."""
    built: bool
    """Whether it had to be built."""


def default_folder() -> Path:
    """Return the folder that MNEME_ENGINES names, or the one in the user's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "mneme-vla" / "engines"


def prepare(folder: Path) -> Path:
    """Return the folder, absolute; made if it is not there.

    Raises:
        ValueError: somebody else could put an engine there.
    """
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
        raise ValueError(
            f"{folder}: owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}; engines are "
            f"code, so nobody else may write there: chmod 700 {folder}, or name another folder "
            f"with {VARIABLE}"
        )
    for place in folder.parents:
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ValueError(
                f"{place}: anyone may replace what is in it (mode {stat.S_IMODE(mode):o}), engines "
                f"in {folder} too; chmod o-w {place}, or name another folder with {VARIABLE}"
            )
    return folder


def obtain(folder: Path, key: Key, build: Callable[[], bytes]) -> Obtained:
    """Return the engine of a key, built if there is none; of two processes one builds.

    Args:
        folder: What `prepare` returned.
        key: What it must have been built from.
        build: Called under a lock, which ends with the process.
    """
    about = configs.to_json(key)
    with _lock(folder, key.name):
        found = _read(folder, key.name, about)
        if found is not None:
            return Obtained(found, False)
        data = build()
        _write(folder, key.name, about, data)
        return Obtained(data, True)


def discard(folder: Path, key: Key) -> None:
    """Forget the engine of a key."""
    with _lock(folder, key.name):
        _sidecar(folder, key.name).unlink(missing_ok=True)


def kept(folder: Path, about: dict[str, Any]) -> bytes:
    """Return what `keep` was last given under that description; empty if nothing."""
    return _read(folder, _hashed(about), about) or b""


def keep(folder: Path, about: dict[str, Any], data: bytes) -> None:
    """Keep what helps later builds, under a description of JSON types."""
    name = _hashed(about)
    with _lock(folder, name):
        _write(folder, name, about, data)


def _lock(folder: Path, name: str) -> FileLock:
    return FileLock(folder / f".{name}.lock")


def _text(about: Any) -> str:
    return json.dumps(about, indent=1, sort_keys=True)


def _hashed(about: dict[str, Any]) -> str:
    return hashlib.sha256(_text(about).encode()).hexdigest()[:32]


def _sidecar(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _read(folder: Path, name: str, about: dict[str, Any]) -> bytes | None:
    """Return the bytes of an entry if they, and what they are of, are as they were written."""
    try:
        sidecar, file = _sidecar(folder, name), folder / f"{name}.bin"
        if (sidecar.stat().st_mode | file.stat().st_mode) & OTHERS:
            return None
        said, data = json.loads(sidecar.read_text()), file.read_bytes()
    except (OSError, ValueError):  # not there, or not JSON
        return None
    wanted = {"about": about, "sha256": hashlib.sha256(data).hexdigest()}
    return data if said == json.loads(json.dumps(wanted)) else None


def _write(folder: Path, name: str, about: dict[str, Any], data: bytes) -> None:
    """Write an entry such that a kill leaves the old one, the new one, or none that is used."""
    told = {"about": about, "sha256": hashlib.sha256(data).hexdigest()}
    _replace(folder / f"{name}.bin", data)
    _replace(_sidecar(folder, name), f"{_text(told)}\n".encode())


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # of a process that was killed
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
