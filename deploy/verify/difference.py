"""Differences of two computations, and how `vla verify-export` reports them."""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import ExportManifest
from vla.contracts.types import PolicyState
from vla.utils.arrays import to_numpy


class Difference(NamedTuple):
    """Largest absolute difference of a number, and lowest cosine of the angle between arrays."""

    worst: float
    cosine: float


def between(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Difference:
    """Return the worst difference of pairs of arrays."""
    return worst_of(Difference(float(np.abs(a - b).max()), cosine(a, b)) for a, b in pairs)


def worst_of(differences: Iterable[Difference]) -> Difference:
    """Return the worst of several differences; NaN is worse than any number."""
    worst, least = zip(*differences, strict=True)
    return Difference(float(np.max(worst)), float(np.min(least)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of the angle between two arrays; 1 if one is zero, NaN if one has a NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.vdot(a, b) / norms) if not norms <= 1e-12 else 1.0


def alike(state: PolicyState, other: PolicyState) -> bool:
    """Return whether two states hold the same memory: no number is a tenth apart.

    Rounding stays far below that, while a slot memory that merged other entries differs in whole
    decisions of a slot's count.
    """
    return all(
        np.allclose(to_numpy(value), to_numpy(other[name]), rtol=1e-4, atol=0.1)
        for name, value in state.tensors.items()
    )


def sheet(title: str, stages: Mapping[str, Difference]) -> Table:
    """Return a table of stages, to which more rows of three columns may be added."""
    table = Table(title=f"{title} against PyTorch on the CPU")
    for column in ("what", "largest difference", "lowest cosine"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, gap in stages.items():
        table.add_row(name, f"{gap.worst:.1e}", f"{gap.cosine:.7f}")
    table.add_section()
    return table


def conclude(
    folder: Path, manifest: ExportManifest, result: Any, wrong: Sequence[str], **more: Any
) -> int:
    """Write the result into the manifest and print failures; return the exit code.

    The result is a dataclass with `stages`, `wrong` a sentence for each exceeded budget, and `more`
    are further entries of the result, as JSON types.
    """
    stages = {name: gap._asdict() for name, gap in result.stages.items()}
    parity = {"found": {**dataclasses.asdict(result), "stages": stages}, **more, "faults": wrong}
    artefacts.write_manifest(folder, dataclasses.replace(manifest, parity=parity))
    for line in wrong:
        print(f"beyond the budget: {line}", file=sys.stderr)
    return int(bool(wrong))
