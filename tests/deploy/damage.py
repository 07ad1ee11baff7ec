"""Checks of exported folders, of a policy or a reward model alike."""

import json
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.runtime import artefact as artefacts

ROOT = Path(__file__).parents[2]
FOLDERS = (str(ROOT), str(Path.home()), sysconfig.get_path("purelib"))
PRIVATE = re.compile("|".join([*map(re.escape, FOLDERS), "Traceback", r"\.py\b"]).encode())
"""What would reveal the machine that exported: folders and stack traces; not org.pytorch.aten."""


def changed(folder: Path, **values: Any) -> None:
    """Give the manifest other values."""
    path = folder / artefacts.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def assert_named(read: Callable[[Path], object], folder: Path, name: str) -> None:
    """Flip a bit of a file, then remove it: reading has to name it both times."""
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name}: SHA-256 .* the manifest says .*export again"):
        read(folder)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{name}: missing; copy the whole folder"):
        read(folder)


def assert_private(folder: Path) -> None:
    """Assert that no file tells of the machine that exported it."""
    for path in folder.iterdir():
        assert not PRIVATE.findall(path.read_bytes()), path
