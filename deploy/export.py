"""`vla export`: a checkpoint becomes a folder that runs without torch."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from deploy import artefact as artefacts
from deploy import graph, quantize, recorded
from deploy.artefact import Graph, Manifest, Precision, Scaling
from deploy.policy import DeployedPolicy
from deploy.targets import onnxruntime
from vla import arguments, checkpoint
from vla.checkpoint import Provenance
from vla.contracts.config import check_least
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy

USAGE = (
    "usage: vla export CHECKPOINT --out FOLDER [--batch N] [--precision int8 --calibrate DATASET]"
)
PACKAGES = ("torch", "onnx", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class ExportArgs:
    """Export a checkpoint to ONNX, for engines that need no torch."""

    out: Path
    """Folder of the exported policy; replaced if it is one."""
    batch: int = 1
    """Rows decided at once."""
    precision: Precision = "fp32"
    """Of the convolutions; int8 is calibrated on recorded observations."""
    calibrate: Path | None = None
    """Those observations: a data set of its task."""
    decisions: int = 300
    """How many of them."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=1, decisions=1)
        if (self.precision == "int8") != (self.calibrate is not None):
            raise ValueError(
                f"precision {self.precision} with --calibrate {self.calibrate}: int8 needs "
                "recorded observations, fp32 none; give both --precision int8 --calibrate DATASET"
            )


def export(
    policy: VLAPolicy, origin: Provenance, folder: Path, *, batch: int = 1,
    calibration: Sequence[Observation] = (),
) -> Manifest:  # fmt: skip
    """Write an artefact; the folder is either the old one, or wholly the new.

    Args:
        policy: In evaluation mode, on the CPU.
        origin: Where it comes from.
        folder: Where to write; replaced if it is an artefact.
        batch: Rows of every graph.
        calibration: Recorded observations; with them convolutions are int8, without all is FP32.

    Raises:
        ValueError: the policy is steered, or the folder holds something else.
    """
    if policy.steering is not None:
        raise ValueError(
            "the policy is steered, which is not exported; export the policy it was steered from"
        )
    if folder.exists() and not artefacts.is_artefact(folder):
        raise ValueError(f"{folder}: is there and no exported policy; give another --out")
    checkpoint.recover_folder(folder)  # the rest of an export that was killed
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
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
        if calibration:
            manifest = _quantized(fresh, list(calibration))
        artefacts.read(fresh)
        checkpoint.replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return manifest


def _quantized(folder: Path, calibration: list[Observation]) -> Manifest:
    """Make the convolutions of an artefact int8; return its new description."""
    found = artefacts.read(folder)
    policies = [
        DeployedPolicy(found, onnxruntime.Config().open(found), split=split)
        for split in (False, True)
    ]
    seen = quantize.record(policies, calibration, seed=0)
    graphs = dict(found.manifest.graphs)
    for name, inputs in seen.items():
        if quantize.quantize(found.path(name), inputs):
            graphs[name] = replace(graphs[name], sha256=artefacts.sha256(found.path(name)))
    manifest = replace(found.manifest, graphs=graphs, precision="int8")
    artefacts.write_manifest(folder, manifest)
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
        print(USAGE)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(ExportArgs, argv[1:], "vla export CHECKPOINT")
    policy, origin = checkpoint.load(Path(argv[0]))
    calibration = []
    if args.calibrate:
        store = recorded.load(args.calibrate, policy)
        calibration = list(recorded.observations(store, policy.robot.control_hz, args.decisions))
    manifest = export(policy, origin, args.out, batch=args.batch, calibration=calibration)
    size = sum((args.out / g.file).stat().st_size for g in manifest.graphs.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{args.out}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB, batch {args.batch}, "
        f"{manifest.precision}"
    )
    return 0
