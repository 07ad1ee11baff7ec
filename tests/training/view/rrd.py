"""Reads a recording back with Rerun's own reader."""

from pathlib import Path
from typing import Any

import numpy as np
import rerun


def entities(path: Path) -> set[str]:
    """Return "ENTITY:COMPONENT" of everything in a recording."""
    found = rerun.dataframe.load_recording(path).schema().component_columns()
    return {f"{c.entity_path}:{c.component}" for c in found}


def rows(
    path: Path, entity: str, component: str, timeline: str = "time"
) -> tuple[np.ndarray, list[Any]]:
    """Return times (seconds, or counts) and values of a component, in order of time."""
    view = rerun.dataframe.load_recording(path).view(index=timeline, contents=entity)
    table = view.select().read_all()
    column = table[f"{entity}:{component}"]
    kept = [i for i in range(len(table)) if column[i].is_valid]
    at = table[timeline].combine_chunks()
    if str(at.type).startswith("duration"):
        at = at.cast("int64")
        return np.array([at[i].as_py() for i in kept]) / 1e9, [column[i].as_py() for i in kept]
    return np.array([at[i].as_py() for i in kept]), [column[i].as_py() for i in kept]


def series(path: Path, entity: str, timeline: str = "time") -> tuple[np.ndarray, np.ndarray]:
    """Return times and values [t, n] of time series."""
    at, values = rows(path, entity, "Scalars:scalars", timeline)
    return at, np.array(values)


def still(path: Path, entity: str, component: str) -> list[Any]:
    """Return what holds all the time."""
    view = rerun.dataframe.load_recording(path).view(index="log_tick", contents=entity)
    return view.select_static().read_all()[f"{entity}:{component}"][0].as_py()


def tensors(path: Path, entity: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return times and arrays of tensors."""
    at, values = rows(path, entity, "Tensor:data")
    return at, [np.array(v[0]["buffer"], np.float32).reshape(v[0]["shape"]) for v in values]
