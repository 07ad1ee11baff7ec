"""An exported reward model on disk: graphs, and a manifest with scorer settings and calibration.

`deploy.runtime.artefact` hashes and checks the files, as those of a policy; no torch here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import ExportedGraphs, ExportManifest
from reward_models.core.calibration import Calibration
from reward_models.core.curves import Scored, ScorerConfig

EMBED, SCORE, COMPARE = STAGES = ("embed", "score", "compare")
"""Graphs of one frame, in order."""
OUTPUTS = {
    EMBED: ("embedding", "new_memory"), SCORE: Scored._fields, COMPARE: ("difference", "trend"),
}  # fmt: skip
"""Outputs of each graph."""


@dataclass(frozen=True, kw_only=True)
class RewardModelManifest(ExportManifest):
    """Description of an exported reward model: everything needed to score with the graphs."""

    kind: Literal["reward_model"] = "reward_model"
    """What was exported."""
    cameras: tuple[str, ...]
    """Its cameras, in view order."""
    image_hw: tuple[int, int]
    """Height and width of their images."""
    embedding: int
    """Width of the embedding of a frame."""
    memory: int
    """Width of the memory of earlier frames."""
    scorer: ScorerConfig
    """Settings that turn its outputs into curves."""
    calibration: Calibration
    """Calibration of its probabilities."""
    identity: str
    """Hash of the reward model it was exported from: configuration, tokenizer and weights."""
    provenance: dict[str, Any]
    """Origin of that reward model: data sets, updates, revision, versions."""

    @property
    def pairs(self) -> int:
        """Earlier frames that a frame is compared with: `reward_models.core.curves.Compared`."""
        return len(self.scorer.back_s) + 1

    def contradictions(self) -> Iterator[str]:
        """Yield a clause for each field that does not fit the others."""
        if self.batch < 1 or not self.cameras:
            yield f"batch {self.batch}, cameras {self.cameras}"
        expected = shapes(self)
        for stage in STAGES:
            if stage not in self.graphs:
                yield f"lacks graph {stage!r}"
            graph = self.graphs[stage]
            names = tuple(port.name for port in graph.outputs)
            if names != OUTPUTS[stage]:
                wanted = ", ".join(OUTPUTS[stage])
                yield f"graph {stage!r} returns {', '.join(names)}, expected {wanted}"
            for port in (*graph.inputs, *graph.outputs):
                if port.shape != expected.get(port.name):
                    yield (
                        f"{port.name} of graph {stage!r} has shape {port.shape}, the rest of the "
                        f"description asks for {expected.get(port.name)}"
                    )


@dataclass(frozen=True, kw_only=True)
class RewardModelArtefact(ExportedGraphs):
    """An exported reward model whose files were checked."""

    manifest: RewardModelManifest
    """Its description."""

    def check_origin(self, identity: str, place: Path) -> None:
        """Raise ValueError unless the reward model at `place` is the exported one."""
        expected = self.manifest.identity
        if identity != expected:
            raise ValueError(
                f"{self.folder}: exported from reward model {expected[:12]}..., {place} holds "
                f"{identity[:12]}...; give the reward model that it was exported from, or export "
                "again"
            )


def read(folder: Path) -> RewardModelArtefact:
    """Read an exported reward model and check every file of it.

    Raises:
        ValueError: it is none, or a file is missing, damaged or was changed since the export.
    """
    manifest = artefacts.read_manifest(folder, RewardModelManifest, "reward_model")
    tokenizer = artefacts.read_files(folder, manifest)
    return RewardModelArtefact(folder=folder, manifest=manifest, tokenizer=tokenizer)


def shapes(manifest: RewardModelManifest) -> dict[str, tuple[int | str, ...]]:
    """Return the shape of every input and output of the graphs, by name."""
    rows, pairs = manifest.batch, manifest.pairs
    scalar, embedding, memory = (rows,), (rows, manifest.embedding), (rows, manifest.memory)
    frames = "num_reference_frames"
    return {
        "images": (rows, len(manifest.cameras), *manifest.image_hw, 3),
        "token_ids": (rows, "num_tokens"), "memory": memory, "is_first": scalar,
        "embedding": embedding, "new_memory": memory, "first_embedding": embedding,
        "earlier_embeddings": (rows, pairs, manifest.embedding),
        "reference_embeddings": (frames, manifest.embedding), "reference_progress": (frames,),
        "value": scalar, "spread": scalar, "done": scalar, "match": scalar,
        "difference": (rows, pairs), "trend": (rows, pairs, 3),
    }  # fmt: skip
