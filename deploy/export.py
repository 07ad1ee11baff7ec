"""`vla export`: a checkpoint becomes a folder that runs without torch."""

import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from deploy import artefact as artefacts
from deploy import graph
from deploy.artefact import Graph, Manifest, Scaling
from vla import arguments, checkpoint
from vla.checkpoint import Provenance
from vla.contracts.config import check_least
from vla.policies.vla import VLAPolicy

PACKAGES = ("torch", "onnx", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class ExportArgs:
    """Export a checkpoint to ONNX, for engines that need no torch."""

    out: Path
    """Folder of the exported policy; replaced if it is one."""
    batch: int = 1
    """Rows decided at once."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=1)


def export(policy: VLAPolicy, origin: Provenance, folder: Path, *, batch: int = 1) -> Manifest:
    """Write an artefact; the folder is either the old one, or wholly the new.

    Args:
        policy: In evaluation mode, on the CPU.
        origin: Where it comes from.
        folder: Where to write; replaced if it is an artefact.
        batch: Rows of every graph.

    Raises:
        ValueError: the policy is steered, or the folder holds something else.
    """
    if policy.steering is not None:
        raise ValueError(
            "the policy is steered, which is not exported; export the policy it was steered from"
        )
    if folder.exists() and not artefacts.is_artefact(folder):
        raise ValueError(f"{folder}: is there and no exported policy; give another --out")
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        traced = graph.trace(policy, batch)
        graphs = {}
        with Progress(transient=True) as bar:
            for name, one in bar.track(traced.items(), description="exporting"):
                graphs[name] = graph.export(policy, one, fresh / f"{name}.onnx")
        policy.text.tokenizer.save(str(fresh / artefacts.TOKENIZER))
        manifest = _manifest(policy, origin, graphs, batch, fresh)
        artefacts.write_manifest(fresh, manifest)
        artefacts.read(fresh)
        checkpoint.replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return manifest


def _manifest(
    policy: VLAPolicy, origin: Provenance, graphs: dict[str, Graph], batch: int, folder: Path
) -> Manifest:
    scale, head = policy.normalizer, policy.head
    slots = policy.initial_state(1).tokens.shape[1:]
    return Manifest(
        format=artefacts.FORMAT, robot=policy.robot, views=tuple(policy.views),
        chunk=policy.config.chunk, execute=policy.config.execute,
        memory=(int(slots[0]), int(slots[1]), int(slots[2])),
        alphas=_numbers(head.alphas), steps=head.config.steps, late=head.config.tuned,
        scaling=Scaling(
            state_mean=_numbers(scale.state_mean), state_std=_numbers(scale.state_std),
            action_center=_numbers(scale.action_center), action_scale=_numbers(scale.action_scale),
        ),
        batch=batch, precision="fp32", graphs=graphs,
        tokenizer=artefacts.sha256(folder / artefacts.TOKENIZER), task=origin.task,
        instructions=origin.instructions, step=origin.step, revision=origin.revision,
        versions={name: metadata.version(name) for name in PACKAGES},
    )  # fmt: skip


def _numbers(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def main(argv: list[str]) -> int:
    """Run `vla export CHECKPOINT --out FOLDER`; return the exit code.

    Raises:
        ValueError: the checkpoint is damaged, or the folder holds something else.
    """
    if not argv or argv[0].startswith("-"):
        print("usage: vla export CHECKPOINT --out FOLDER [--batch N]")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(ExportArgs, argv[1:], "vla export CHECKPOINT")
    policy, origin = checkpoint.load(Path(argv[0]))
    manifest = export(policy, origin, args.out, batch=args.batch)
    size = sum((args.out / g.file).stat().st_size for g in manifest.graphs.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{args.out}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB, batch {args.batch}, "
        f"{manifest.precision}"
    )
    return 0
