"""`vla export` of a critic: a trained one becomes a folder that runs without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy import artefact as artefacts
from deploy import folder as folders
from deploy.artefact import Graph
from deploy.critic import artefact as critics
from deploy.critic import graph
from deploy.critic.artefact import EMBED, CriticManifest
from reward_models import checkpoint as critic_checkpoint
from reward_models.critic import Critic, Exportable
from reward_models.scorer import Scorer
from vla import arguments
from vla.contracts.config import check_least


@dataclass(frozen=True, kw_only=True)
class CriticExportArgs:
    """Export a trained critic to ONNX, for engines that need no torch."""

    out: Path
    """Folder of the exported critic; replaced if it is one."""
    batch: int = 1
    """Episodes watched at once."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=1)


def is_meant(place: Path) -> bool:
    """Whether `vla export PLACE` means a critic, whole or not."""
    return critic_checkpoint.is_critic(place)


def export(place: Path, folder: Path, *, batch: int = 1) -> CriticManifest:
    """Write an artefact; the folder is either the old one, or wholly the new.

    Args:
        place: Folder or run of a trained critic.
        folder: Where to write; replaced if it is an exported critic.
        batch: Rows of every graph.

    Raises:
        ValueError: there is no critic that can be exported, or the folder holds something else.
    """
    scorer = critic_checkpoint.load(place)
    critic: Any = scorer.critic  # a module: nothing else has weights
    check_exportable(critic, place)
    with folders.replacing(folder, "critic") as fresh:
        traced = graph.trace(critic, len(scorer.config.back_s) + 1, batch)
        graphs = folders.graphs(critic, traced, critic.text.tokenizer, fresh)
        manifest = _manifest(place, scorer, critic, graphs, fresh, batch)
        artefacts.write_manifest(fresh, manifest)
        critics.read(fresh)
    return manifest


def check_exportable(critic: Critic, place: Path) -> None:
    """Raise ValueError unless a critic, found at `place`, is of a kind that can be exported."""
    if not isinstance(critic, Exportable):
        kind = type(critic).__module__.rsplit(".", 1)[-1]
        raise ValueError(
            f"{place}: a critic of type {kind!r} is not exported, as it does more than graphs can "
            "hold; give one of type 'pairwise'"
        )


def _manifest(
    place: Path, scorer: Scorer, critic: Exportable, graphs: dict[str, Graph], folder: Path,
    batch: int,
) -> CriticManifest:  # fmt: skip
    found = critic_checkpoint.find(place)
    widths = {port.name: port.shape[-1] for port in graphs[EMBED].outputs}
    return CriticManifest(
        format=artefacts.FORMAT, cameras=critic.cameras, image_hw=critic.image_hw,
        embedding=int(widths["embedding"]), memory=int(widths["new_memory"]),
        scorer=scorer.config, calibration=scorer.calibration, batch=batch, graphs=graphs,
        tokenizer=artefacts.sha256(folder / artefacts.TOKENIZER),
        identity=critic_checkpoint.identity(found),
        provenance=critic_checkpoint.describe(found).provenance,
        versions=folders.versions(),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `vla export CRITIC --out FOLDER`; return the exit code.

    Raises:
        ValueError: the critic is damaged or cannot be exported, or the folder holds something else.
    """
    args = arguments.read(CriticExportArgs, argv[1:], "vla export CRITIC")
    manifest = export(Path(argv[0]), args.out, batch=args.batch)
    size = sum((args.out / g.file).stat().st_size for g in manifest.graphs.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{args.out}: {len(manifest.graphs)} graphs of a critic, {size / 1e6:.1f} MB, "
        f"batch {args.batch}, fp32"
    )
    return 0
