"""`vla train distill`: trains a student that denoises in one step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training.core import loop, plugin_flags
from training.core.config import DistillConfig, Teacher
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class DistillArgs:
    """Arguments of `vla train distill`."""

    out: Path
    """Folder of the run."""
    teacher: Teacher
    """Policy and data set to learn from."""
    train: DistillConfig
    """Settings of the run."""


def parse(argv: list[str]) -> DistillArgs:
    """Return the arguments of `vla train distill`.

    Raises:
        ValueError: an unknown flag.
    """
    config, rest = plugin_flags.choose_plugins(DistillConfig(), argv)

    def arguments_of(
        out: Path, policy: Annotated[Path, tyro.conf.arg(name="policy.path")], dataset: Path,
        train: Annotated[DistillConfig, tyro.conf.arg(name="")] = config,
    ) -> DistillArgs:  # fmt: skip
        """Train a student that maps noise to a chunk in one denoising step.

        Args:
            out: Folder of the run; the same command resumes it.
            policy: Checkpoint of the teacher.
            dataset: Data set with the observations: the one that the teacher was trained on.
            train: Settings of the run; each is a flag.
        """
        return DistillArgs(out=out, teacher=Teacher(policy, dataset), train=train)

    return arguments.read(arguments_of, rest, "vla train distill")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    loop.run(args.train, args.teacher, args.out, Console())
    return 0
