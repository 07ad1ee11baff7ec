"""`vla train`: records demonstrations if no data set is given, then trains on them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from sim import vec_env
from training.core import distributed, loop, plugin_flags, pretrained
from training.core.config import TrainConfig
from training.data import demos
from vla import checkpoint
from vla.contracts import registry

DEFAULT_RECIPE = "reach"
TASK_RECIPE = "imitate"
"""Recipe if a task is named and no recipe."""
DEFAULT_PRESET = "tiny"
"""The preset that leaves recipes unchanged."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train a policy: --recipe NAME chooses a recipe, --preset NAME its scale, --task NAME (or
    SUITE/TASK) its task, --policy.memory.type NAME a plug-in.
    """

    out: Path
    """Folder of the run; the same command resumes it."""
    dataset: tuple[Path, ...] = ()
    """LeRobotDataset v3 to learn from, and one for each of --co-tasks in their order; then those of
    each of --co-robots; recorded next to the run if not given."""
    parallel: distributed.Parallel = "ddp"
    """Under torchrun, each process holds all weights (ddp) or a shard of the weights and of the
    optimizer state (fsdp); not a setting of the run."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The recipe; each setting is a flag."""


def train(
    config: TrainConfig, out: Path, dataset: tuple[Path, ...], console: Console,
    parallel: distributed.Parallel = "ddp",
) -> list[loop.Outcome]:  # fmt: skip
    """Record the recipe's demonstrations unless `dataset` is given, then train.

    Under `torchrun`, all its processes train together.

    Raises:
        ValueError: settings do not fit together, the data set or `out` is damaged or holds
            something else, or another process has ended.
    """
    with distributed.init_group(config.device, parallel) as group:
        for task in (config.task, *map(vec_env.load_task, config.co_tasks)):
            replace(config, task=task).load_robots()
        loop.check(config, out)
        config.policy.check()
        # Before demonstrations are recorded.
        if config.pretrained_path is not None:
            checkpoint.find(Path(config.pretrained_path))
        if config.pretrained_vision_encoder is not None:
            pretrained.find_vision(Path(config.pretrained_vision_encoder))
        if not dataset:
            recordings = _recordings(config, out)
            dataset = tuple(recording.out for recording in recordings)
            if group.is_main:
                for recording in recordings:
                    demos.check(recording)
                for recording in recordings:
                    demos.record_demos(recording)
            group.barrier()
        return loop.run(config, dataset, out, console, group)


def _recordings(config: TrainConfig, out: Path) -> list[demos.DemosConfig]:
    """Return the recordings of the demonstrations of a run's tasks, robot by robot."""
    result = []
    for robot in (config.robot, *config.co_robots):
        for name in ("", *config.co_tasks):
            other = "" if robot == config.robot else robot
            parts = [part for part in (f"data-{out.name}", name, other) if part]
            recording = demos.DemosConfig(
                out=out.parent / "-".join(parts).replace("/", "-"),
                task=vec_env.load_task(name) if name else config.task,
                robot=robot, episodes=config.demos.episodes, behaviour=config.demos.behaviour,
                seed=config.demos.seed, recovery_fraction=config.demos.recovery_fraction,
            )  # fmt: skip
            result.append(recording)
    return result


def parse(argv: list[str]) -> Args:
    """Return the arguments of `vla train`.

    Raises:
        ValueError: an unknown recipe, preset or plug-in.
    """
    task, rest = plugin_flags.take(argv, "--task", "")
    name, rest = plugin_flags.take(rest, "--recipe", TASK_RECIPE if task else DEFAULT_RECIPE)
    scale, rest = plugin_flags.take(rest, "--preset", DEFAULT_PRESET)
    recipe = registry.load("training.recipes", name).recipe()
    if task:
        other = vec_env.load_task(task)
        policy: Any = recipe.policy
        cameras = tuple(camera.name for camera in vec_env.load_arm(other).cameras)
        recipe = replace(recipe, task=other, policy=replace(policy, cameras=cameras))
    recipe = registry.load("training.presets", scale).preset(recipe)
    config, rest = plugin_flags.choose_plugins(recipe, rest)
    config = _adapt(recipe, config)
    return plugin_flags.read_args(Args, config, rest, f"vla train --recipe {name}")


def _adapt(recipe: TrainConfig, config: TrainConfig) -> TrainConfig:
    """Return a configuration with the policy type that flags chose; chunk size, action steps and
    cameras are the recipe's, the optimizer settings those that the policy type prefers.
    """
    if type(config.policy) is type(recipe.policy):
        return config
    policy: Any = recipe.policy
    same = {name: getattr(policy, name) for name in ("chunk_size", "n_action_steps", "cameras")}
    preset = getattr(config.policy, "preset", {})
    return replace(
        config, policy=replace(config.policy, **same), optimizer=replace(config.optimizer, **preset)
    )


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    train(args.train, args.out, args.dataset, Console(), args.parallel)
    return 0
