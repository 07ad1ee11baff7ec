"""`vla train`: demonstrations if there are none yet, then the loop, from a recipe and flags."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from reward_models import checkpoint as critics
from sim import vec_env
from training import demos, flags, loop, team
from training.config import TrainConfig
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import PluginConfig

DEFAULT_RECIPE = "reach"
TASK_RECIPE = "imitate"
"""The recipe where a task is named and no recipe."""


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
    """Record the recipe's demonstrations unless `data` is given, then train; started by `torchrun`,
    together with the processes that it started as well.

    Raises:
        ValueError: settings make no sense, data or `out` are damaged or belong elsewhere, or
            another of these processes has ended.
    """
    with team.joined(config.device) as mine:
        vec_env.load_arm(config.task, config.robot)
        loop.check(config, out)
        config.policy.check()
        if config.vision_from is not None:
            critics.find(Path(config.vision_from))  # before demonstrations are recorded
        if data is None:
            data = out.parent / f"data-{out.name}"
            wanted = demos.DemosConfig(
                out=data, task=config.task, robot=config.robot, episodes=config.demos.episodes,
                behaviour=config.demos.behaviour, seed=config.demos.seed,
            )  # fmt: skip
            if mine.leads:
                demos.check(wanted)
                demos.record_demos(wanted)
            mine.wait()
        return loop.run(config, data, out, console, mine)


def parse(argv: list[str]) -> TrainArgs:
    """Return the arguments of `vla train`.

    Raises:
        ValueError: an unknown recipe or plug-in.
    """
    task, rest = flags.take(argv, "--task", "")
    name, rest = flags.take(rest, "--recipe", TASK_RECIPE if task else DEFAULT_RECIPE)
    recipe = registry.load("training.recipes", name).recipe()
    if task:
        recipe = _for_task(recipe, vec_env.load_task(task))
    config, rest = flags.choose_plugins(recipe, rest)

    def told(
        out: Path, data: Path | None = None,
        train: Annotated[TrainConfig, tyro.conf.arg(name="")] = config,
    ) -> TrainArgs:  # fmt: skip
        """Train a policy: --recipe NAME chooses a recipe, --task NAME (or SUITE/TASK) its task,
        --policy.memory.type NAME a plug-in.

        Args:
            out: Folder of the run; the same command continues what is there.
            data: LeRobotDataset v3 to learn from; recorded beside the run if not given.
            train: The recipe; every setting is a flag.
        """
        return TrainArgs(out=out, data=data, train=train)

    return arguments.read(told, rest, f"vla train --recipe {name}")


def _for_task(recipe: TrainConfig, task: PluginConfig) -> TrainConfig:
    """Return a recipe with another task, looked at through the cameras of its arm."""
    policy: Any = recipe.policy
    cameras = tuple(camera.name for camera in vec_env.load_arm(task).cameras)
    return replace(recipe, task=task, policy=replace(policy, cameras=cameras))


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    train(args.train, args.out, args.data, Console())
    return 0
