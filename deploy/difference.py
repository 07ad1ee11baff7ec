"""How far what two engines compute is apart, and how `vla parity` tells it."""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from deploy import artefact as artefacts


class Difference(NamedTuple):
    """How far two results are apart."""

    worst: float
    """Largest difference of a number."""
    cosine: float
    """Least cosine of the angle between two rows; blind to scale."""


def between(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Difference:
    """Return how far pairs of arrays are apart."""
    return worst_of(Difference(float(np.abs(a - b).max()), cosine(a, b)) for a, b in pairs)


def worst_of(found: Iterable[Difference]) -> Difference:
    """Return the worst of several differences; NaN is worse than any number."""
    worst, least = zip(*found, strict=True)
    return Difference(float(np.max(worst)), float(np.min(least)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of the angle between two arrays; 1 if one of them is nothing, NaN if it
    has one.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.vdot(a, b) / norms) if not norms <= 1e-12 else 1.0  # nothing


def sheet(title: str, stages: Mapping[str, Difference]) -> Table:
    """Return a table of stages, to which more rows of three columns may be added."""
    table = Table(title=f"{title} against PyTorch on the CPU")
    for column in ("what", "largest difference", "least cosine"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, one in stages.items():
        table.add_row(name, f"{one.worst:.1e}", f"{one.cosine:.7f}")
    table.add_section()
    return table


def conclude(folder: Path, manifest: Any, found: Any, wrong: Sequence[str], **more: Any) -> int:
    """Keep what was found in the manifest and say what is wrong; return the exit code.

    Args:
        folder: What was exported.
        manifest: Its description.
        found: A dataclass of what was found, with `stages`.
        wrong: What lies beyond its budget, a sentence each.
        more: What else is to be kept, as JSON types.
    """
    stages = {name: one._asdict() for name, one in found.stages.items()}
    told = {"found": {**dataclasses.asdict(found), "stages": stages}, **more, "faults": wrong}
    artefacts.write_manifest(folder, dataclasses.replace(manifest, parity=told))
    for line in wrong:
        print(f"beyond the budget: {line}", file=sys.stderr)
    return int(bool(wrong))
