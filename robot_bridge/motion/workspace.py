"""Bounds of an arm: section `workspace` of the limits file.

In metres in the frame of the arm's base, which is the world of its model (MJCF). This module does
not import ROS.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KEYS = ("low", "high", "table")


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Bounds in metres; missing bounds are infinite."""

    low: tuple[float, float, float] = (-np.inf, -np.inf, -np.inf)
    """Lowest x, y, z of any point of the hand."""
    high: tuple[float, float, float] = (np.inf, np.inf, np.inf)
    """Highest x, y, z of any point of the hand."""
    table: float = -np.inf
    """Lowest z of any point of any link that moves."""


def read(path: Path, section: Any) -> Workspace:
    """Return the workspace of a file's parsed section; errors name the file.

    Raises:
        ValueError: a key is unknown, one of `low` and `high` is missing, or a value is no number.
    """
    if not isinstance(section, dict) or not section:
        raise ValueError(
            f"{path}: workspace is {section!r}, expected low and high as [x, y, z], or table as z"
        )
    for key in section:
        if key not in KEYS:
            raise ValueError(
                f"{path}: workspace: unknown key {key!r}; it has {', '.join(KEYS)}, in metres"
            )
    if ("low" in section) != ("high" in section):
        present, missing = ("low", "high") if "low" in section else ("high", "low")
        raise ValueError(f"{path}: workspace: {present} is given and {missing} is not; give both")
    bounds: dict[str, Any] = {
        key: _corner(path, key, section[key]) for key in ("low", "high") if key in section
    }
    if bounds:
        for axis, low, high in zip("xyz", bounds["low"], bounds["high"], strict=True):
            if not low < high:
                raise ValueError(
                    f"{path}: workspace: {axis} has no room from {low:g} to {high:g}; low has to "
                    "be below high"
                )
    if "table" in section:
        if not is_finite_number(section["table"]):
            raise ValueError(
                f"{path}: workspace: table is {section['table']!r}, expected its height z in metres"
            )
        bounds["table"] = float(section["table"])
    return Workspace(**bounds)


def _corner(path: Path, key: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, list) or len(value) != 3 or not all(map(is_finite_number, value)):
        raise ValueError(
            f"{path}: workspace: {key} is {value!r}, expected three numbers [x, y, z] in metres"
        )
    x, y, z = map(float, value)
    return x, y, z


def is_finite_number(value: Any) -> bool:
    """Return whether a parsed value is a finite number; true and false are none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and bool(np.isfinite(value))
