"""Damages what was exported, a policy or a critic alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy import artefact as artefacts


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
