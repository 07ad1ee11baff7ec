"""An exported critic on disk: graphs, and a manifest with the rules that make progress of them.

Files are hashed and checked as those of a policy are, by `deploy.artefact`; no torch here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from deploy import artefact as artefacts
from deploy.artefact import Graph
from reward_models.calibrate import Calibration
from reward_models.curves import Judged, ScorerConfig

EMBED, JUDGE, COMPARE = STAGES = ("embed", "judge", "compare")
"""Graphs of one moment, in order."""
GIVEN = {
    EMBED: ("embedding", "new_memory"), JUDGE: Judged._fields, COMPARE: ("difference", "trend"),
}  # fmt: skip
"""What each of them gives."""


@dataclass(frozen=True, kw_only=True)
class CriticManifest:
    """Everything that is needed to watch episodes with the graphs."""

    kind: Literal["critic"] = "critic"
    """What was exported."""
    format: int
    """Version of this description."""
    cameras: tuple[str, ...]
    """Cameras it looks through, in view order."""
    image_hw: tuple[int, int]
    """Height and width of their images."""
    embedding: int
    """Numbers that a frame becomes."""
    memory: int
    """Numbers that are kept of earlier frames."""
    scorer: ScorerConfig
    """How its judgements become curves."""
    calibration: Calibration
    """How they become probabilities."""
    batch: int
    """Rows of every graph."""
    graphs: dict[str, Graph]
    """Graphs by stage."""
    tokenizer: str
    """SHA-256 of the tokenizer's file."""
    identity: str
    """Hash of the critic it was exported from: configuration, words and weights."""
    provenance: dict[str, Any]
    """Where that critic comes from: data sets, updates, revision, versions."""
    versions: dict[str, str]
    """Versions of what exported it."""
    parity: dict[str, Any] = field(default_factory=dict)
    """What `vla parity` found; empty before."""

    @property
    def pairs(self) -> int:
        """Earlier moments that one is compared with: see `reward_models.curves.Compared`."""
        return len(self.scorer.back_s) + 1


@dataclass(frozen=True, kw_only=True)
class CriticArtefact:
    """An exported critic that was checked."""

    folder: Path
    """Where it is."""
    manifest: CriticManifest
    """What it is."""
    tokenizer: Tokenizer
    """Instructions to token ids."""

    def check_origin(self, identity: str, place: Path) -> None:
        """Raise ValueError unless this was exported from the critic of that hash, at `place`."""
        mine = self.manifest.identity
        if identity != mine:
            raise ValueError(
                f"{self.folder}: exported from critic {mine[:12]}..., {place} holds "
                f"{identity[:12]}...; give the critic that it was exported from, or export again"
            )

    def path(self, graph: str) -> Path:
        """Return the file of a graph."""
        return self.folder / self.manifest.graphs[graph].file


def read(folder: Path) -> CriticArtefact:
    """Read an exported critic and check every file of it.

    Raises:
        ValueError: it is not one, or a file is missing, damaged, or another than was exported.
    """
    manifest = artefacts.read_manifest(folder, CriticManifest, "critic")
    _check(manifest, folder / artefacts.MANIFEST)
    tokenizer = artefacts.read_files(folder, manifest)
    return CriticArtefact(folder=folder, manifest=manifest, tokenizer=tokenizer)


def _check(manifest: CriticManifest, path: Path) -> None:
    """Raise ValueError unless the parts of a description fit each other."""
    for wrong in _misfits(manifest):
        raise ValueError(f"{path}: {wrong}; export again")


def _misfits(manifest: CriticManifest) -> Iterator[str]:
    if manifest.batch < 1 or not manifest.cameras:
        yield f"batch {manifest.batch}, cameras {manifest.cameras}"
    expected = shapes(manifest)
    for stage in STAGES:
        if stage not in manifest.graphs:
            yield f"lacks graph {stage!r}"
            continue
        graph = manifest.graphs[stage]
        names = tuple(port.name for port in graph.outputs)
        if names != GIVEN[stage]:
            yield f"graph {stage!r} gives {', '.join(names)}, expected {', '.join(GIVEN[stage])}"
        for port in (*graph.inputs, *graph.outputs):
            if port.shape != expected.get(port.name):
                yield (
                    f"{port.name} of graph {stage!r} has shape {port.shape}, the rest of the "
                    f"description asks for {expected.get(port.name)}"
                )


def shapes(manifest: CriticManifest) -> dict[str, tuple[int | str, ...]]:
    """Return the shape of every input and output of the graphs, by name."""
    rows, pairs = manifest.batch, manifest.pairs
    one, seen, kept = (rows,), (rows, manifest.embedding), (rows, manifest.memory)
    return {
        "images": (rows, len(manifest.cameras), *manifest.image_hw, 3),
        "words": (rows, "words"), "memory": kept, "fresh": one,
        "embedding": seen, "new_memory": kept, "first": seen,
        "earlier": (rows, pairs, manifest.embedding),
        "shown": ("shown", manifest.embedding), "shown_progress": ("shown",),
        "value": one, "spread": one, "done": one, "match": one,
        "difference": (rows, pairs), "trend": (rows, pairs, 3),
    }  # fmt: skip
