"""Opens what drives an arm by what its folder holds: a checkpoint, or an exported policy.

Like `vla.cli` it names modules and imports one when it is needed, so that what learns knows nothing
of engines, and what runs on a robot nothing of torch.
"""

import importlib
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


EXPORTED = ("manifest.json", "deploy.opening:open_")
"""A file that only an exported policy has, and who opens it."""
CHECKPOINT = "vla.checkpoint:open_"


def open_(folder: Path, threads: int) -> Opened:
    """Return the policy in a folder.

    Args:
        folder: Of a run, a checkpoint or an exported policy.
        threads: CPU threads it may use.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    marker, exported = EXPORTED
    target = exported if (folder / marker).is_file() else CHECKPOINT
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)(folder, threads)
