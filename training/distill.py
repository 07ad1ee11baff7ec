"""`vla train distill`: a student that denoises in one step, from a policy that takes several."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training import flags, loop
from training.config import DistillConfig, Teacher
from vla import arguments


@dataclass(frozen=True, kw_only=True)
class DistillArgs:
    """What `vla train distill` was told."""

    out: Path
    """Folder of the run."""
    teacher: Teacher
    """What the student learns from."""
    train: DistillConfig
    """The run."""


def parse(argv: list[str]) -> DistillArgs:
    """Return the arguments of `vla train distill`.

    Raises:
        ValueError: an unknown flag.
    """
    config, rest = flags.choose_plugins(DistillConfig(), argv)

    def told(
        out: Path, policy: Annotated[Path, tyro.conf.arg(name="from")], data: Path,
        train: Annotated[DistillConfig, tyro.conf.arg(name="")] = config,
    ) -> DistillArgs:  # fmt: skip
        """Teach a student to do in one denoising step what a policy does in several.

        Args:
            out: Folder of the run; the same command continues what is there.
            policy: Checkpoint of the teacher.
            data: Data set whose observations it decides on: what it was trained on.
            train: The run; every setting is a flag.
        """
        return DistillArgs(out=out, teacher=Teacher(policy, data), train=train)

    return arguments.read(told, rest, "vla train distill")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    loop.run(args.train, args.teacher, args.out, Console())
    return 0
