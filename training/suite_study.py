"""The study of suites: policies from pictures, cloned from the demonstrations of a suite's experts.

`python -m training.suite_study metaworld/door-close-v3 metaworld/drawer-open-v3 --out runs/suites`

Every line it runs is printed, continues what is there, and can be run by itself. Beside each policy
stands a control that sees nothing: the demonstrations themselves, played back in the test episodes.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sim import vec_env
from training import lines
from training.config import EvalConfig
from vla import files
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.data.reader import open_dataset, read_columns
from vla.statistics import wilson

BAR = 0.8


def record(task: str, episodes: int, out: Path) -> list[str]:
    """Return the line, as words after `vla`, that records a task's demonstrations."""
    return ["demos", task, "--episodes", str(episodes), "--out", str(_data(task, out))]


def train(task: str, seed: int, out: Path, more: list[str]) -> list[str]:
    """Return the line that trains and tests one policy."""
    return [
        "train", "--task", task, "--data", str(_data(task, out)), "--seed", str(seed),
        "--out", str(_run(task, seed, out)), *more,
    ]  # fmt: skip


def replayed(task: PluginConfig, data: Path, episodes: int, seed: int, width: int = 8) -> int:
    """Return in how many episodes of `seed` a demonstration that is played back succeeds.

    Episode k gets demonstration k, again from the first where there are fewer. What follows the end
    of a demonstration is its last action.
    """
    info = open_dataset(data)
    action = read_columns(info).action
    recorded = np.split(action, info.offsets[1:-1])
    width, done = min(width, episodes), 0
    env = vec_env.make(configs.type_name(task), width, task_config=task)
    with contextlib.closing(env):
        for first in range(0, episodes, width):
            index = np.arange(first, min(first + width, episodes))
            rows = np.arange(len(index))
            env.begin(rows, np.full(len(rows), seed), index)
            idle = np.arange(width) >= len(rows)
            won, time = np.zeros(width, np.bool_), 0
            while not idle.all():
                acts = [recorded[k % len(recorded)] for k in (*index, *[0] * (width - len(index)))]
                now = np.stack([one[min(time, len(one) - 1)] for one in acts])
                step = env.step_chunk(now[:, None].astype(np.float32), idle=idle)
                ended = ~idle & (step.terminated | step.truncated)
                won |= ended & step.info["success"]
                idle, time = idle | ended, time + 1
            done += int(won.sum())
    return done


def table(tasks: list[str], seeds: list[int], out: Path) -> tuple[Table, int]:
    """Return one line per task, pooled over seeds, and how many tasks reach the bar."""
    sheet = Table(
        title="success of policies cloned from pictures, on episodes of a seed of its own"
    )
    for column in (
        "task",
        "demonstrations",
        "by seed",
        "all",
        "95 %",
        "demonstrations played back",
    ):
        sheet.add_column(column)
    reached = 0
    for task in tasks:
        found = [json.loads((_run(task, s, out) / "evaluation.json").read_text()) for s in seeds]
        good, trials = (sum(fn(one["success"]) for one in found) for fn in (sum, len))
        low, high = wilson(good, trials)
        blind = json.loads(_control(task, out).read_text())
        reached += good / trials >= BAR
        sheet.add_row(
            task, str(open_dataset(_data(task, out)).num_episodes),
            " ".join(f"{one['rate']:.1%}" for one in found), f"{good / trials:.1%}",
            f"{low:.1%} to {high:.1%}", f"{blind['success'] / blind['episodes']:.1%}",
        )  # fmt: skip
    return sheet, reached


def _control(task: str, out: Path) -> Path:
    return out / f"replayed-{_folder(task)}.json"


def _data(task: str, out: Path) -> Path:
    return out / f"data-{_folder(task)}"


def _run(task: str, seed: int, out: Path) -> Path:
    return out / f"{_folder(task)}-{seed}"


def _folder(task: str) -> str:
    return task.replace("/", "-")


def main(argv: list[str] | None = None) -> int:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", metavar="SUITE/TASK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--demos", type=int, default=100, help="demonstrations of each task")
    parser.add_argument("--episodes", type=int, default=100, help="test episodes of each policy")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument(
        "--more", nargs=argparse.REMAINDER, default=[], help="further words for every `vla train`"
    )
    args, console = parser.parse_args(argv), Console()
    test = EvalConfig().seed + 1
    words = ["--eval.every", "0", "--eval.final-episodes", str(args.episodes), *args.more]
    for task in args.tasks:
        lines.must(record(task, args.demos, args.out), console)
        if not _control(task, args.out).exists():
            config = vec_env.load_task(task)
            good = replayed(config, _data(task, args.out), args.episodes, test)
            found = {"success": good, "episodes": args.episodes, "seed": test}
            files.write_json(_control(task, args.out), found)
        for seed in args.seeds:
            lines.must(train(task, seed, args.out, words), console)
    sheet, reached = table(args.tasks, args.seeds, args.out)
    console.print(sheet)
    console.print(f"{reached} of {len(args.tasks)} tasks at {BAR:.0%} or more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
