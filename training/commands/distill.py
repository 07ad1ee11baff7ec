"""`vla train distill`: trains a student that denoises in one step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training.core import loop, plugin_flags
from training.core.config import DistillConfig, Teacher


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train a student that maps noise to a chunk in one denoising step."""

    out: Path
    """Folder of the run; the same command resumes it."""
    policy: Annotated[Path, tyro.conf.arg(name="policy.path")]
    """Checkpoint of the teacher."""
    dataset: Path
    """Data set with the observations: the one that the teacher was trained on."""
    train: Annotated[DistillConfig, tyro.conf.arg(name="")]
    """Settings of the run; each is a flag."""


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = plugin_flags.read_args(Args, DistillConfig(), argv, "vla train distill")
    loop.run(args.train, Teacher(args.policy, args.dataset), args.out, Console())
    return 0
