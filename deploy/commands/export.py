"""`vla export`: a checkpoint becomes a folder that runs without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from deploy.export import folder as folders
from deploy.export import graph, recorded
from deploy.precision import quantize, sixteen_bit, small_floats
from deploy.reward_model import export as reward_model_export
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Artefact, Graph, Manifest, Precision, Scaling
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.contracts.config import validate_min
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy
from vla.utils import arguments

USAGE = (
    "usage: vla export CHECKPOINT --out FOLDER [--batch N] [--num-inference-steps N]\n"
    "           [--precision fp16 | bf16 | nvfp4]\n"
    "       vla export CHECKPOINT --out FOLDER --precision int8 | fp8 --dataset DATASET\n"
    "       vla export REWARD_MODEL --out FOLDER [--batch N]"
)


@dataclass(frozen=True, kw_only=True)
class ExportArgs:
    """Export a checkpoint to ONNX, for targets that need no torch."""

    out: Path
    """Folder of the exported policy; replaced if it is one."""
    batch: int = 1
    """Rows of every graph: arms decided for at once."""
    robot: str = ""
    """Arm to export for, one of those of training; the first of them if empty."""
    num_inference_steps: int = 0
    """Denoising steps of a decision; the checkpoint's own if 0."""
    precision: Precision = "fp32"
    """Of convolutions and learned matrices; int8 and fp8 are calibrated on recordings."""
    dataset: Path | None = None
    """Data set of the policy's task, to calibrate int8 or fp8 with."""
    decisions: int = 300
    """Recorded observations for the calibration."""

    def __post_init__(self) -> None:
        validate_min(self, batch=1, decisions=1, num_inference_steps=0)
        if (self.precision in artefacts.CALIBRATED) != (self.dataset is not None):
            raise ValueError(
                f"precision {self.precision} with --dataset {self.dataset}: int8 and fp8 need "
                "recorded observations, others none; give both --precision int8 --dataset DATASET"
            )


def export(
    policy: VLAPolicy, origin: Provenance, folder: Path, *, batch: int = 1,
    precision: Precision = "fp32", calibration: Sequence[Observation] = (),
) -> Manifest:  # fmt: skip
    """Write an exported policy; an old folder is replaced as a whole or stays.

    The policy is in evaluation mode, on the CPU; int8 and fp8 are calibrated on recorded
    observations.

    Raises:
        ValueError: the folder holds something else, or the precision changes nothing.
    """
    with folders.replacing(folder, "policy") as new:
        graphs = folders.graphs(policy, graph.trace(policy, batch), policy.text.tokenizer, new)
        manifest = _manifest(policy, origin, graphs, batch, new)
        artefacts.write_manifest(new, manifest)
        if precision in artefacts.CALIBRATED:
            manifest = _calibrated(new, list(calibration), precision)
        elif precision != "fp32":
            manifest = _converted(new, precision)
        artefacts.read(new)
    return manifest


def _calibrated(folder: Path, calibration: list[Observation], precision: Precision) -> Manifest:
    """Make convolutions and matrices of an artefact int8 or fp8; return its new manifest."""
    artefact = artefacts.read(folder)
    policies = [
        DeployedPolicy(artefact, onnxruntime.Config().open(artefact), split=split)
        for split in (False, True)
    ]
    for name, inputs in quantize.record(policies, calibration, seed=0).items():
        if precision == "fp8":
            small_floats.fp8(artefact.path(name), inputs)
        else:
            quantize.quantize(artefact.path(name), inputs, artefact.manifest.batch)
    return _rewritten(artefact, precision)


def _converted(folder: Path, precision: Precision) -> Manifest:
    """Make convolutions and learned matrices of an artefact smaller; return its manifest."""
    artefact = artefacts.read(folder)
    changed = 0
    for name in artefact.manifest.graphs:
        if precision == "nvfp4":
            changed += small_floats.nvfp4(artefact.path(name))
        else:
            changed += sixteen_bit.halve(artefact.path(name), precision)  # type: ignore[arg-type]
    if precision == "nvfp4" and not changed:
        raise ValueError(
            f"precision nvfp4: got a policy without matrices of {small_floats.LARGE:,} numbers, "
            "which alone gain by it; export with --precision fp16"
        )
    return _rewritten(artefact, precision)


def _rewritten(artefact: Artefact, precision: Precision) -> Manifest:
    """Write the manifest of an artefact whose graphs have changed, and return it."""
    graphs = {
        name: replace(described, sha256=artefacts.sha256(artefact.path(name)))
        for name, described in artefact.manifest.graphs.items()
    }
    manifest = replace(artefact.manifest, graphs=graphs, precision=precision)
    artefacts.write_manifest(artefact.folder, manifest)
    return manifest


def _manifest(
    policy: VLAPolicy, origin: Provenance, graphs: dict[str, Graph], batch: int, folder: Path
) -> Manifest:
    scale, head = policy.normalizer, policy.head
    return Manifest(
        format=artefacts.FORMAT, robot=policy.robot, views=tuple(policy.views),
        chunk_size=policy.config.chunk_size, n_action_steps=policy.config.n_action_steps,
        max_prefix_len=policy.max_prefix_len,
        remembers=policy.remembers, state_shapes=policy.memory.state_shapes(),
        path=head.path, alphas=_numbers(head.alphas),
        num_inference_steps=head.config.num_inference_steps,
        ft_denoising_steps=head.config.ft_denoising_steps,
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
    if reward_model_export.is_source(Path(argv[0])):
        return reward_model_export.main(argv)
    args = arguments.read(ExportArgs, argv[1:], "vla export CHECKPOINT")
    policy, origin = checkpoint.load_vla(Path(argv[0]), "export")
    if args.robot:
        policy = policy.for_robot(args.robot)
    policy.float()  # frozen weights may have sixteen bits; the graphs are FP32
    steps = args.num_inference_steps
    policy = policy.with_steps(steps) if steps else policy
    calibration = []
    if args.dataset:
        store = recorded.load(args.dataset, policy)
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
