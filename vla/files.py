"""Writes text files such that a reader, a kill or a full disk finds the old one or the new one."""

import json
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace a file by one rename; if that fails, the old one stays as it was."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(text)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a file by one with `value`, JSON types, in it."""
    write_text(path, json.dumps(value) + "\n")
