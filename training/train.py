"""`vla train`: demonstrations if there are none yet, then the loop, from a recipe and flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training import demos, flags, loop
from training.config import TrainConfig
from training.evaluate import Evaluation
from vla.contracts import registry

DEFAULT_RECIPE = "reach"


@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """Train a policy: --recipe NAME chooses a recipe, --policy.memory.type NAME a plug-in."""

    out: Path
    """Folder of the run; the same command continues what is there."""
    data: Path | None = None
    """LeRobotDataset v3 to learn from; recorded beside the run by the recipe if not given."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The recipe; every setting is a flag."""


def train(config: TrainConfig, out: Path, data: Path | None, console: Console) -> list[Evaluation]:
    """Record the recipe's demonstrations unless `data` is given, then train."""
    if data is None:
        data = out.parent / f"data-{out.name}"
        wanted = demos.DemosConfig(
            out=data, task=config.task, robot=config.robot, episodes=config.demos.episodes,
            behaviour=config.demos.behaviour, seed=config.demos.seed,
        )  # fmt: skip
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
    default = TrainArgs(out=tyro.MISSING, train=config)
    return tyro.cli(TrainArgs, args=rest, prog=f"vla train --recipe {name}", default=default)


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    try:
        train(args.train, args.out, args.data, Console())
    except (demos.Interrupted, loop.Interrupted) as stop:
        print(f"interrupted: {stop}; the same command goes on from there")
        return 130
    return 0
