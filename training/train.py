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
DEFAULT_PRESET = "tiny"
"""The scale that recipes have by themselves."""


@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """What `vla train` was told."""

    out: Path
    """Folder of the run."""
    data: Path | None
    """Data set to learn from; None to record one."""
    parallel: team.Parallel
    """Who holds which weights, of several processes."""
    train: TrainConfig
    """The recipe, with the flags' settings."""


def train(
    config: TrainConfig, out: Path, data: Path | None, console: Console,
    parallel: team.Parallel = "ddp",
) -> list[loop.Outcome]:  # fmt: skip
    """Record the recipe's demonstrations unless `data` is given, then train; started by `torchrun`,
    together with the processes that it started as well.

    Raises:
        ValueError: settings make no sense, data or `out` are damaged or belong elsewhere, or
            another of these processes has ended.
    """
    with team.joined(config.device, parallel) as mine:
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
        ValueError: an unknown recipe, preset or plug-in.
    """
    task, rest = flags.take(argv, "--task", "")
    name, rest = flags.take(rest, "--recipe", TASK_RECIPE if task else DEFAULT_RECIPE)
    scale, rest = flags.take(rest, "--preset", DEFAULT_PRESET)
    recipe = registry.load("training.recipes", name).recipe()
    if task:
        recipe = _for_task(recipe, vec_env.load_task(task))
    recipe = registry.load("training.presets", scale).preset(recipe)
    config, rest = flags.choose_plugins(recipe, rest)
    config = _as_in(recipe, config)

    def told(
        out: Path, data: Path | None = None,
        parallel: team.Parallel = "ddp",
        train: Annotated[TrainConfig, tyro.conf.arg(name="")] = config,
    ) -> TrainArgs:  # fmt: skip
        """Train a policy: --recipe NAME chooses a recipe, --preset NAME its scale, --task NAME (or
        SUITE/TASK) its task, --policy.memory.type NAME a plug-in.

        Args:
            out: Folder of the run; the same command continues what is there.
            data: LeRobotDataset v3 to learn from; recorded beside the run if not given.
            parallel: Of processes that torchrun started, each holds all weights (ddp) or a share
                of them and of what the optimiser keeps (fsdp); not a setting of the run.
            train: The recipe; every setting is a flag.
        """
        return TrainArgs(out=out, data=data, parallel=parallel, train=train)

    return arguments.read(told, rest, f"vla train --recipe {name}")


def _for_task(recipe: TrainConfig, task: PluginConfig) -> TrainConfig:
    """Return a recipe with another task, looked at through the cameras of its arm."""
    policy: Any = recipe.policy
    cameras = tuple(camera.name for camera in vec_env.load_arm(task).cameras)
    return replace(recipe, task=task, policy=replace(policy, cameras=cameras))


def _as_in(recipe: TrainConfig, config: TrainConfig) -> TrainConfig:
    """Return a recipe with another type of policy, which decides as the recipe's does and learns
    at the rate that it asks for.
    """
    if type(config.policy) is type(recipe.policy):
        return config
    policy: Any = recipe.policy
    same = {name: getattr(policy, name) for name in ("chunk", "execute", "cameras")}
    preset = getattr(config.policy, "preset", {})
    return replace(
        config, policy=replace(config.policy, **same), optimiser=replace(config.optimiser, **preset)
    )


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    train(args.train, args.out, args.data, Console(), args.parallel)
    return 0
