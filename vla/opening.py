"""Opens what drives an arm by what its folder holds: a checkpoint, or an exported policy.

Like `vla.cli` it names modules and imports one when it is needed, so that what learns knows nothing
of engines, and what runs on a robot nothing of torch.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla.contracts.protocols import ArmPolicy


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A policy, and what is known of it."""

    policy: ArmPolicy
    """In evaluation mode."""
    folder: Path
    """Where it was found."""
    task: dict[str, Any]
    """Configuration of the task it was trained on, as JSON."""
    step: int
    """Updates it was trained for."""
    target: str
    """Who runs it."""
    refused: tuple[str, ...] = ()
    """Why targets that were to be tried before do not, a sentence each."""

    def refusals(self) -> list[str]:
        """Return what a user is told of targets that do not run it, a line each."""
        return [f"refused target {one}" for one in self.refused]


EXPORTED = ("manifest.json", "deploy.opening:open_")
"""A file that only an exported policy has, and who opens it."""
CHECKPOINT_TARGETS = {
    "torch": "vla.checkpoint:open_",
    "torch-compile": "deploy.reference:open_",
}
"""Who opens a checkpoint, by the name of the target."""


def open_(
    folder: Path, threads: int, targets: tuple[str, ...] = (), *, against: Path | None = None,
    device: str = "cpu",
) -> Opened:  # fmt: skip
    """Return the policy in a folder.

    Args:
        folder: Of a run, a checkpoint or an exported policy.
        threads: CPU threads it may use.
        targets: Who may run it, in order; () for PyTorch, and ONNX Runtime if it is exported.
        against: The checkpoint it was exported from, for targets of a checkpoint.
        device: Where a checkpoint runs, "cpu" or "cuda".

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
        return load(exported)(folder, threads, targets, against)
    wrong = [name for name in targets if name not in CHECKPOINT_TARGETS]
    if wrong or against is not None:
        got = f"targets {', '.join(wrong)}" if wrong else f"--against {against}"
        raise ValueError(
            f"{folder}: got {got} for what is no exported policy; a checkpoint takes "
            f"{' and '.join(CHECKPOINT_TARGETS)}: export it first with `vla export`"
        )
    if targets in ((), ("torch",)):
        return load(CHECKPOINT_TARGETS["torch"])(folder, threads, device)
    return load("deploy.reference:open_first")(folder, threads, targets, device)


def load(target: str) -> Callable[..., Any]:
    """Import "module:function" and return the function."""
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)
