"""Cache of built engines in a folder that no other user may write.

An engine is code for one GPU. It is used only if its key and its bytes are those that were stored;
otherwise it is built again.
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
    """Precision of the graph."""
    profile: dict[str, tuple[tuple[int, ...], ...]]
    """Smallest, usual and largest shape of every input of variable shape."""
    flags: tuple[str, ...]
    """Settings of the builder."""

    @property
    def name(self) -> str:
        """Name of its files: a hash of all fields."""
        return _hashed(configs.to_json(self))


class CachedEngine(NamedTuple):
    """Bytes of an engine, and whether it had to be built."""

    data: bytes
    built: bool


def default_folder() -> Path:
    """Return the folder that MNEME_ENGINES names, or the one in the user's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "mneme-vla" / "engines"


def prepare(folder: Path) -> Path:
    """Return the absolute folder; created if it does not exist.

    Raises:
        ValueError: another user could put an engine there.
    """
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS:
        raise ValueError(
            f"{folder}: owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}; engines are "
            f"code, so no other user may write there: chmod 700 {folder}, or name another folder "
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


def get_or_build(folder: Path, key: Key, build: Callable[[], bytes]) -> CachedEngine:
    """Return the engine of a key, built if there is none; one of two processes builds it.

    Args:
        folder: Result of `prepare`.
        key: Everything that the engine depends on.
        build: Called under a lock that ends with the process.
    """
    about = configs.to_json(key)
    with _lock(folder, key.name):
        data = _read(folder, key.name, about)
        if data is not None:
            return CachedEngine(data, False)
        data = build()
        _write(folder, key.name, about, data)
        return CachedEngine(data, True)


def discard(folder: Path, key: Key) -> None:
    """Forget the engine of a key."""
    with _lock(folder, key.name):
        _sidecar(folder, key.name).unlink(missing_ok=True)


def load(folder: Path, about: dict[str, Any]) -> bytes:
    """Return the bytes last stored under a description; empty if there are none."""
    return _read(folder, _hashed(about), about) or b""


def store(folder: Path, about: dict[str, Any], data: bytes) -> None:
    """Store bytes that help later builds under a description of JSON types."""
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
    """Return the bytes of an entry if they and their description are as written."""
    try:
        sidecar, file = _sidecar(folder, name), folder / f"{name}.bin"
        if (sidecar.stat().st_mode | file.stat().st_mode) & OTHERS:
            return None
        written, data = json.loads(sidecar.read_text()), file.read_bytes()
    except (OSError, ValueError):  # not there, or not JSON
        return None
    expected = {"about": about, "sha256": hashlib.sha256(data).hexdigest()}
    return data if written == json.loads(json.dumps(expected)) else None


def _write(folder: Path, name: str, about: dict[str, Any], data: bytes) -> None:
    """Write an entry; a kill leaves the old one, the new one, or none that is read."""
    described = {"about": about, "sha256": hashlib.sha256(data).hexdigest()}
    _replace(folder / f"{name}.bin", data)
    _replace(_sidecar(folder, name), f"{_text(described)}\n".encode())


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # of a process that was killed
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
