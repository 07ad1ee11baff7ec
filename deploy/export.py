"""`vla export`: a checkpoint becomes a folder that runs without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from deploy import artefact as artefacts
from deploy import folder as folders
from deploy import graph, quantize, recorded
from deploy import precision as precisions
from deploy.artefact import Artefact, Graph, Manifest, Precision, Scaling
from deploy.critic import export as critic_export
from deploy.policy import DeployedPolicy
from deploy.targets import onnxruntime
from vla import arguments, checkpoint
from vla.checkpoint import Provenance
from vla.contracts.config import check_least
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy

USAGE = (
    "usage: vla export CHECKPOINT --out FOLDER [--batch N] [--steps N] [--precision fp16 | bf16]\n"
    "       vla export CHECKPOINT --out FOLDER --precision int8 --calibrate DATASET\n"
    "       vla export CRITIC --out FOLDER [--batch N]"
)


@dataclass(frozen=True, kw_only=True)
class ExportArgs:
    """Export a checkpoint to ONNX, for engines that need no torch."""

    out: Path
    """Folder of the exported policy; replaced if it is one."""
    batch: int = 1
    """Rows decided at once."""
    steps: int = 0
    """Denoising steps of a decision; the checkpoint's own if 0."""
    precision: Precision = "fp32"
    """Of convolutions and learned matrices; int8 is calibrated on recorded observations."""
    calibrate: Path | None = None
    """Those observations: a data set of its task."""
    decisions: int = 300
    """How many of them."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=1, decisions=1, steps=0)
        if (self.precision == "int8") != (self.calibrate is not None):
            raise ValueError(
                f"precision {self.precision} with --calibrate {self.calibrate}: int8 needs "
                "recorded observations, others none; give both --precision int8 --calibrate DATASET"
            )


def export(
    policy: VLAPolicy, origin: Provenance, folder: Path, *, batch: int = 1,
    precision: Precision = "fp32", calibration: Sequence[Observation] = (),
) -> Manifest:  # fmt: skip
    """Write an artefact; the folder is either the old one, or wholly the new.

    Args:
        policy: In evaluation mode, on the CPU.
        origin: Where it comes from.
        folder: Where to write; replaced if it is an artefact.
        batch: Rows of every graph.
        precision: Of convolutions and products with learned matrices.
        calibration: Recorded observations, for int8.

    Raises:
        ValueError: the policy is steered, or the folder holds something else.
    """
    if policy.steering is not None:
        raise ValueError(
            "the policy is steered, which is not exported; export the policy it was steered from"
        )
    with folders.replacing(folder, "policy") as fresh:
        graphs = folders.graphs(policy, graph.trace(policy, batch), policy.text.tokenizer, fresh)
        manifest = _manifest(policy, origin, graphs, batch, fresh)
        artefacts.write_manifest(fresh, manifest)
        if precision == "int8":
            manifest = _quantized(fresh, list(calibration))
        elif precision != "fp32":
            manifest = _halved(fresh, precision)
        artefacts.read(fresh)
    return manifest


def _quantized(folder: Path, calibration: list[Observation]) -> Manifest:
    """Make convolutions and large matrices of an artefact int8; return its new description."""
    found = artefacts.read(folder)
    policies = [
        DeployedPolicy(found, onnxruntime.Config().open(found), split=split)
        for split in (False, True)
    ]
    seen = quantize.record(policies, calibration, seed=0)
    for name, inputs in seen.items():
        quantize.quantize(found.path(name), inputs, found.manifest.batch)
    return _rewritten(found, "int8")


def _halved(folder: Path, half: precisions.Half) -> Manifest:
    """Make convolutions and learned matrices of an artefact sixteen bits."""
    found = artefacts.read(folder)
    for name in found.manifest.graphs:
        precisions.halve(found.path(name), half)
    return _rewritten(found, half)


def _rewritten(found: Artefact, precision: Precision) -> Manifest:
    """Describe an artefact whose graphs have changed."""
    graphs = {
        name: replace(one, sha256=artefacts.sha256(found.path(name)))
        for name, one in found.manifest.graphs.items()
    }
    manifest = replace(found.manifest, graphs=graphs, precision=precision)
    artefacts.write_manifest(found.folder, manifest)
    return manifest


def _manifest(
    policy: VLAPolicy, origin: Provenance, graphs: dict[str, Graph], batch: int, folder: Path
) -> Manifest:
    scale, head = policy.normalizer, policy.head
    slots = policy.initial_state(1).tokens.shape[1:]
    return Manifest(
        format=artefacts.FORMAT, robot=policy.robot, views=tuple(policy.views),
        chunk=policy.config.chunk, execute=policy.config.execute, prefix=policy.prefix,
        memory=(int(slots[0]), int(slots[1]), int(slots[2])),
        path=head.path, alphas=_numbers(head.alphas), steps=head.config.steps,
        late=head.config.tuned,
        scaling=Scaling(
            state_mean=_numbers(scale.state_mean), state_std=_numbers(scale.state_std),
            action_center=_numbers(scale.action_center), action_scale=_numbers(scale.action_scale),
        ),
        batch=batch, precision="fp32", graphs=graphs,
        tokenizer=artefacts.sha256(folder / artefacts.TOKENIZER), task=origin.task,
        instructions=origin.instructions, step=origin.step, revision=origin.revision,
        versions=folders.versions(), pretrained=policy.config.backbone.source,
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
    if critic_export.is_meant(Path(argv[0])):
        return critic_export.main(argv)
    args = arguments.read(ExportArgs, argv[1:], "vla export CHECKPOINT")
    policy, origin = checkpoint.load_ours(Path(argv[0]), "export")
    policy.float()  # frozen weights may be of sixteen bits, which no graph of ours begins with
    policy = policy.with_steps(args.steps) if args.steps else policy
    calibration = []
    if args.calibrate:
        store = recorded.load(args.calibrate, policy)
        calibration = list(recorded.observations(store, policy.robot.control_hz, args.decisions))
    manifest = export(
        policy, origin, args.out, batch=args.batch, precision=args.precision,
        calibration=calibration,
    )  # fmt: skip
    size = sum((args.out / g.file).stat().st_size for g in manifest.graphs.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{args.out}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB, batch {args.batch}, "
        f"{manifest.precision}"
    )
    return 0
