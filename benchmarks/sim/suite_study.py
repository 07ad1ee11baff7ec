"""How often a suite's own experts succeed, task by task, through the env server, unrendered.

`python -m benchmarks.sim.suite_study metaworld --episodes 20`

Results are in a JSON file; the same command resumes.
"""

import contextlib
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from sim import vec_env
from sim.env_server import suite_installs
from sim.rollout import outcomes
from vla import cli
from vla.contracts.config import PluginConfig, validate_min

BAR, TASKS_BAR = 0.95, 0.8
"""Share of episodes that a task must reach, and share of tasks that must reach it."""
CHUNK = 25


@dataclass(frozen=True, kw_only=True)
class Study:
    """Measure how often the experts of a suite succeed."""

    suite: tyro.conf.Positional[str]
    """Name of the suite."""
    tasks: tuple[str, ...] = ()
    """Tasks; all if none are named."""
    episodes: int = 20
    """Episodes of each task."""
    workers: int = 2
    """Processes."""
    seed: int = 0
    """Seed of the episodes."""
    out: Path | None = None
    """Results; runs/experts-SUITE.json if not given."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, workers=1, seed=0)


def play(task: PluginConfig, episodes: int, workers: int, seed: int) -> list[dict[str, Any]]:
    """Return index, success and length in steps of episodes 0 to `episodes` - 1 of a seed.

    Raises:
        ValueError: the suite is not installed, or the task has no expert.
    """
    width = min(workers, episodes)
    env = vec_env.make(vec_env.title(task), width, workers=width, task_config=task)
    with contextlib.closing(env):
        if not env.has_expert:
            raise ValueError(f"{env.spec.task}: its suite has no expert; nothing to measure")
        blank = np.zeros((width, CHUNK, len(env.spec.robot.channels)), np.float32)
        ended = outcomes(env, env.reset(seed), lambda *_: blank, episodes, expert=True)
    return [{"index": o.number, "success": o.success, "steps": o.steps} for o in ended]


def table(cells: dict[str, list[dict[str, Any]]]) -> tuple[Table, int]:
    """Return a row per task, the worst first, and how many tasks reach the bar."""
    rows, reached = [], 0
    rates = {task: sum(e["success"] for e in episodes) / len(episodes)
             for task, episodes in cells.items()}  # fmt: skip
    for task in sorted(cells, key=lambda name: (rates[name], name)):
        episodes = cells[task]
        steps = [episode["steps"] for episode in episodes if episode["success"]]
        reached += rates[task] >= BAR
        rows.append((
            task, f"{len(steps)}/{len(episodes)}",
            harness.interval(len(steps), len(episodes), digits=0),
            f"{np.median(steps):.0f}" if steps else "-",
        ))  # fmt: skip
    columns = ("task", "success", "95 %", "steps, median of successes")
    return harness.table("", columns, rows, left=4), reached


def main(argv: list[str]) -> int:
    """Measure the missing tasks; exit code 1 if too few tasks reach the bar.

    Raises:
        ValueError: a name is unknown, a number out of range, or the file is of another study.
    """
    study, console = harness.read(Study, argv, "sim.suite_study"), Console(highlight=False)
    suite = suite_installs.check(study.suite)
    tasks = study.tasks or tuple(suite_installs.module(suite).TASKS)
    configs = [_without_images(vec_env.load_task(f"{suite}/{name}")) for name in tasks]
    settings = {"suite": suite, "episodes": study.episodes, "seed": study.seed}
    out = study.out or Path("runs") / f"experts-{suite}.json"
    results = harness.Results(out, settings, "tasks")
    for name, config in zip(tasks, configs, strict=True):
        if name not in results.cells:
            results.cells[name] = play(config, study.episodes, study.workers, study.seed)
            results.save()
            successes = sum(episode["success"] for episode in results.cells[name])
            console.print(f"{name}: {successes}/{study.episodes}")
    sheet, reached = table({name: results.cells[name] for name in tasks})
    console.print(sheet)
    console.print(f"{reached} of {len(tasks)} tasks at {BAR:.0%} or more")
    return 0 if reached >= TASKS_BAR * len(tasks) else 1


def _without_images(task: PluginConfig) -> PluginConfig:
    """Return a task that renders no images, where its suite can leave them out."""
    names = [field.name for field in dataclasses.fields(task) if field.name == "draw"]
    return dataclasses.replace(task, **dict.fromkeys(names, False))


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.suite_study:main", sys.argv[1:]))
