"""How often a suite's own experts succeed, task by task, through the bridge and without pictures.

`python -m sim.suite_study metaworld --episodes 20`

What was measured lies in a JSON file; the same command goes on from there.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sim import environments, vec_env
from vla.contracts.config import PluginConfig
from vla.statistics import wilson

BAR, TASKS_BAR = 0.95, 0.8
"""Share of episodes that a task must reach, and share of tasks that must reach it."""
CHUNK = 25


def play(task: PluginConfig, episodes: int, workers: int, seed: int) -> list[dict[str, Any]]:
    """Return index, success and length in steps of episodes 0 to `episodes` - 1 of a seed.

    Raises:
        ValueError: the suite is not installed, or the task has no expert.
    """
    width, done = min(workers, episodes), []
    env = vec_env.make(vec_env.title(task), width, workers=width, task_config=task)
    with contextlib.closing(env):
        if not env.has_expert:
            raise ValueError(f"{env.spec.task}: its suite has no expert; nothing to measure")
        env.reset(seed)
        blank = np.zeros((width, CHUNK, len(env.spec.robot.channels)), np.float32)
        length, idle = np.zeros(width, np.int64), np.zeros(width, np.bool_)
        while not idle.all():
            step = env.step_chunk(blank, np.ones(width, np.bool_), idle)
            length += np.where(idle, 0, step.info["steps"])
            ended = ~idle & (step.terminated | step.truncated)
            for row in np.flatnonzero(ended):
                index = int(step.info["episode"][row])
                won, steps = bool(step.info["success"][row]), int(length[row])
                done.append({"index": index, "success": won, "steps": steps})
                idle[row] = index + width >= episodes
            length[ended] = 0
    return sorted(done, key=lambda one: one["index"])


def table(found: dict[str, list[dict[str, Any]]]) -> tuple[Table, int]:
    """Return a line per task, the worst first, and how many tasks reach the bar."""
    sheet, reached = Table("task", "success", "95 %", "steps, median of successes"), 0
    rates = {task: sum(one["success"] for one in runs) / len(runs) for task, runs in found.items()}
    for task in sorted(found, key=lambda name: (rates[name], name)):
        runs = found[task]
        good = [one["steps"] for one in runs if one["success"]]
        low, high = wilson(len(good), len(runs))
        reached += rates[task] >= BAR
        sheet.add_row(
            task, f"{len(good)}/{len(runs)}", f"{low:.0%} to {high:.0%}",
            f"{np.median(good):.0f}" if good else "-",
        )  # fmt: skip
    return sheet, reached


def main(argv: list[str] | None = None) -> int:
    """Measure what is missing; exit code 1 if too few tasks reach the bar.

    Raises:
        ValueError: a name is unknown, a number out of range, or the file is of another study.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all")
    parser.add_argument("--episodes", type=int, default=20, help="per task (default 20)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: runs/experts-SUITE.json")
    args, console = parser.parse_args(argv), Console(highlight=False)
    for name in ("episodes", "workers"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: got {getattr(args, name)}, expected at least 1")
    suite = environments.check(args.suite)
    tasks = args.tasks or list(environments.module(suite).TASKS)
    configs = [_undrawn(vec_env.load_task(f"{suite}/{name}")) for name in tasks]
    out = args.out or Path("runs") / f"experts-{suite}.json"
    study = {"suite": suite, "episodes": args.episodes, "seed": args.seed}
    found = _read(out, study)
    for name, config in zip(tasks, configs, strict=True):
        if name not in found:
            found[name] = play(config, args.episodes, args.workers, args.seed)
            _write(out, {**study, "tasks": found})
            won = sum(one["success"] for one in found[name])
            console.print(f"{name}: {won}/{args.episodes}")
    sheet, reached = table({name: found[name] for name in tasks})
    console.print(sheet)
    console.print(f"{reached} of {len(tasks)} tasks at {BAR:.0%} or more")
    return 0 if reached >= TASKS_BAR * len(tasks) else 1


def _undrawn(task: PluginConfig) -> PluginConfig:
    """Return a task without its pictures, where its suite can leave them out."""
    found = [field.name for field in dataclasses.fields(task) if field.name == "draw"]
    return dataclasses.replace(task, **dict.fromkeys(found, False))


def _read(file: Path, study: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    if not file.exists():
        return {}
    there = json.loads(file.read_text())
    found = there.pop("tasks", None)
    if found is None or there != study:
        raise ValueError(f"{file}: got a study of {there}, expected {study}; give another --out")
    return found


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(file)


if __name__ == "__main__":
    sys.exit(main())
