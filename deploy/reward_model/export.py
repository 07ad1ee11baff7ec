"""`vla export` of a reward model: a trained one becomes a folder that runs without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.export import folder as folders
from deploy.reward_model import artefact as reward_model_artefact
from deploy.reward_model import graph
from deploy.reward_model.artefact import EMBED, RewardModelManifest
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Graph
from reward_models.core import checkpoint as reward_model_checkpoint
from reward_models.core.interface import Exportable, RewardModelNetwork
from reward_models.core.scorer import Scorer
from vla.contracts.config import validate_min
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class RewardModelExportArgs:
    """Export a trained reward model to ONNX, for targets that need no torch."""

    out: Path
    """Folder of the exported reward model; replaced if it is one."""
    batch: int = 1
    """Rows of every graph: episodes scored at once."""

    def __post_init__(self) -> None:
        validate_min(self, batch=1)


def is_source(place: Path) -> bool:
    """Whether a place holds a reward model, complete or not."""
    return reward_model_checkpoint.is_reward_model(place)


def export(place: Path, folder: Path, *, batch: int = 1) -> RewardModelManifest:
    """Write the reward model at `place`; an old folder is replaced as a whole or stays.

    Raises:
        ValueError: it is none that can be exported, or the folder holds something else.
    """
    scorer = reward_model_checkpoint.load(place)
    reward_model: Any = scorer.reward_model  # a module: nothing else has weights
    check_exportable(reward_model, place)
    with folders.replacing(folder, "reward_model") as new:
        traced = graph.trace(reward_model, len(scorer.config.back_s) + 1, batch)
        graphs = folders.graphs(reward_model, traced, reward_model.text.tokenizer, new)
        manifest = _manifest(place, scorer, reward_model, graphs, new, batch)
        artefacts.write_manifest(new, manifest)
        reward_model_artefact.read(new)
    return manifest


def check_exportable(reward_model: RewardModelNetwork, place: Path) -> None:
    """Raise ValueError unless the reward model at `place` can be exported."""
    if not isinstance(reward_model, Exportable):
        kind = type(reward_model).__module__.rsplit(".", 1)[-1]
        raise ValueError(
            f"{place}: a reward model of type {kind!r} is not exported: it does more than "
            "graphs can hold; give one of type 'pairwise'"
        )


def _manifest(
    place: Path, scorer: Scorer, reward_model: Exportable, graphs: dict[str, Graph], folder: Path,
    batch: int,
) -> RewardModelManifest:  # fmt: skip
    source = reward_model_checkpoint.find(place)
    widths = {port.name: port.shape[-1] for port in graphs[EMBED].outputs}
    return RewardModelManifest(
        format=artefacts.FORMAT, cameras=reward_model.cameras, image_hw=reward_model.image_hw,
        embedding=int(widths["embedding"]), memory=int(widths["new_memory"]),
        scorer=scorer.config, calibration=scorer.calibration, batch=batch, graphs=graphs,
        tokenizer=artefacts.sha256(folder / artefacts.TOKENIZER),
        identity=reward_model_checkpoint.identity(source),
        provenance=reward_model_checkpoint.describe(source).provenance,
        versions=folders.versions(),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `vla export REWARD_MODEL --out FOLDER`; return the exit code.

    Raises:
        ValueError: the reward model is damaged or cannot be exported, or the folder holds
        something else.
    """
    args = arguments.read(RewardModelExportArgs, argv[1:], "vla export REWARD_MODEL")
    manifest = export(Path(argv[0]), args.out, batch=args.batch)
    size = sum((args.out / g.file).stat().st_size for g in manifest.graphs.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{args.out}: {len(manifest.graphs)} graphs of a reward model, {size / 1e6:.1f} MB, "
        f"batch {args.batch}, fp32"
    )
    return 0
