"""`vla train`: demonstrations if there are none yet, then the loop, from a recipe and flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from reward_models import checkpoint as critics
from training import demos, flags, loop
from training.config import TrainConfig
from vla import arguments
from vla.contracts import registry

DEFAULT_RECIPE = "reach"


@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """What `vla train` was told."""

    out: Path
    """Folder of the run."""
    data: Path | None
    """Data set to learn from; None to record one."""
    train: TrainConfig
    """The recipe, with the flags' settings."""


def train(
    config: TrainConfig, out: Path, data: Path | None, console: Console
) -> list[loop.Outcome]:
    """Record the recipe's demonstrations unless `data` is given, then train.

    Raises:
        ValueError: settings make no sense, data or `out` are damaged or belong elsewhere.
    """
    registry.check("vla.robots", config.robot)
    loop.check(config, out)
    if config.vision_from is not None:
        critics.find(Path(config.vision_from))  # before demonstrations are recorded
    if data is None:
        data = out.parent / f"data-{out.name}"
        wanted = demos.DemosConfig(
            out=data, task=config.task, robot=config.robot, episodes=config.demos.episodes,
            behaviour=config.demos.behaviour, seed=config.demos.seed,
        )  # fmt: skip
        demos.check(wanted)
        demos.record_demos(wanted)
    return loop.run(config, data, out, console)


def parse(argv: list[str]) -> TrainArgs:
    """Return the arguments of `vla train`.

    Raises:
        ValueError: an unknown recipe or plug-in.
    """
    name, rest = flags.take(argv, "--recipe", DEFAULT_RECIPE)
    recipe = registry.load("training.recipes", name).recipe()
    config, rest = flags.choose_plugins(recipe, rest)

    def told(
        out: Path, data: Path | None = None,
        train: Annotated[TrainConfig, tyro.conf.arg(name="")] = config,
    ) -> TrainArgs:  # fmt: skip
        """Train a policy: --recipe NAME chooses a recipe, --policy.memory.type NAME a plug-in.

        Args:
            out: Folder of the run; the same command continues what is there.
            data: LeRobotDataset v3 to learn from; recorded beside the run if not given.
            train: The recipe; every setting is a flag.
        """
        return TrainArgs(out=out, data=data, train=train)

    return arguments.read(told, rest, f"vla train --recipe {name}")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    train(args.train, args.out, args.data, Console())
    return 0
