"""Where an arm may be: the section `workspace` of the file of limits; no ROS here.

Metres in the frame of the arm's base, which is the world of its model (MJCF).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KEYS = ("low", "high", "table")


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Bounds in metres; a bound that is not given is infinite."""

    low: tuple[float, float, float] = (-np.inf, -np.inf, -np.inf)
    """Lowest x, y, z of any point of the hand."""
    high: tuple[float, float, float] = (np.inf, np.inf, np.inf)
    """Highest x, y, z of any point of the hand."""
    table: float = -np.inf
    """Lowest z of any point of any link that moves."""


def read(path: Path, found: Any) -> Workspace:
    """Return the workspace that a file's section says.

    Args:
        path: The file, for messages.
        found: What YAML made of the section.

    Raises:
        ValueError: a key is unknown, both corners are not given, or something is no number.
    """
    if not isinstance(found, dict) or not found:
        raise ValueError(
            f"{path}: workspace is {found!r}, expected low and high as [x, y, z], or table as z"
        )
    for key in found:
        if key not in KEYS:
            raise ValueError(
                f"{path}: workspace: unknown key {key!r}; it has {', '.join(KEYS)}, in metres"
            )
    if ("low" in found) != ("high" in found):
        given, missing = ("low", "high") if "low" in found else ("high", "low")
        raise ValueError(f"{path}: workspace: {given} is given and {missing} is not; give both")
    bounds: dict[str, Any] = {
        key: _corner(path, key, found[key]) for key in ("low", "high") if key in found
    }
    if bounds:
        for axis, low, high in zip("xyz", bounds["low"], bounds["high"], strict=True):
            if not low < high:
                raise ValueError(
                    f"{path}: workspace: {axis} has no room from {low:g} to {high:g}; low has to "
                    "be below high"
                )
    if "table" in found:
        if not _finite(found["table"]):
            raise ValueError(
                f"{path}: workspace: table is {found['table']!r}, expected its height z in metres"
            )
        bounds["table"] = float(found["table"])
    return Workspace(**bounds)


def _corner(path: Path, key: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, list) or len(value) != 3 or not all(map(_finite, value)):
        raise ValueError(
            f"{path}: workspace: {key} is {value!r}, expected three numbers [x, y, z] in metres"
        )
    x, y, z = map(float, value)
    return x, y, z


def _finite(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and bool(np.isfinite(value))
