"""Loads a policy from a folder: a checkpoint or an exported policy.

Like `vla.cli` it imports a module by name when it is needed: training imports no inference runtime,
and a robot no torch.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla.contracts.protocols import ArmPolicy


@dataclass(frozen=True, kw_only=True)
class LoadedPolicy:
    """A policy and its origin."""

    policy: ArmPolicy
    """In evaluation mode."""
    folder: Path
    """Its folder."""
    task: dict[str, Any]
    """Configuration of the task it was trained on, as JSON."""
    step: int
    """Training updates."""
    target: str
    """Inference target that runs it."""
    refused: tuple[str, ...] = ()
    """Why targets earlier in the list do not run it, a sentence each."""

    def refusals(self) -> list[str]:
        """Return a line for the user about each target that does not run it."""
        return [f"refused target {reason}" for reason in self.refused]


EXPORTED = ("manifest.json", "deploy.loader:open_policy")
"""A file that only an exported policy has, and the function that loads one."""
CHECKPOINT_TARGETS = {
    "torch": "vla.checkpoint:open_policy",
    "torch-compile": "deploy.verify.torch_target:open_compiled",
}
"""Function that loads a checkpoint, by target."""


def open_policy(
    folder: Path, threads: int, targets: tuple[str, ...] = (), *,
    reference_checkpoint: Path | None = None, device: str = "cpu", robot: str = "",
) -> LoadedPolicy:  # fmt: skip
    """Return the policy in a folder.

    Args:
        folder: Folder of a run, a checkpoint or an exported policy.
        threads: CPU threads it may use.
        targets: Targets in order of preference; () for PyTorch, or ONNX Runtime if it is exported.
        reference_checkpoint: The checkpoint of an exported policy, for targets of a checkpoint.
        device: Device of a checkpoint, such as "cpu" or "cuda".
        robot: Arm, by name, of a checkpoint that drives several; the first of them if empty.

    Raises:
        ValueError: there is none, it is damaged, or no target runs it.
    """
    marker, exported = EXPORTED
    if (folder / marker).is_file():
        if device != "cpu":
            raise ValueError(
                f"{folder}: an exported policy runs where its target does; leave --device out, "
                "and name the target with --targets"
            )
        return import_function(exported)(folder, threads, targets, reference_checkpoint)
    wrong = [name for name in targets if name not in CHECKPOINT_TARGETS]
    if wrong or reference_checkpoint is not None:
        flag = f"--reference-checkpoint {reference_checkpoint}"
        got = f"targets {', '.join(wrong)}" if wrong else flag
        raise ValueError(
            f"{folder}: got {got} for a folder that is no exported policy; a checkpoint takes "
            f"{' and '.join(CHECKPOINT_TARGETS)}: export it first with `vla export`"
        )
    if targets in ((), ("torch",)):
        return import_function(CHECKPOINT_TARGETS["torch"])(folder, threads, device, robot)
    open_checkpoint = import_function("deploy.verify.torch_target:open_checkpoint")
    return open_checkpoint(folder, threads, targets, device, robot)


def import_function(target: str) -> Callable[..., Any]:
    """Import "module:function" and return the function."""
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)
