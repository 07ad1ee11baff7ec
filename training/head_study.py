"""The study of action heads: flow matching beside diffusion, by success and time of a decision.

`python -m training.head_study --task reach pick_place --seeds 0 1 2 --out runs/heads`

All learn from the same demonstrations, batches and number of updates, and act in the same episodes
in several numbers of steps, as exported policies. What a network predicts is studied apart from the
path it does it on. Times are taken in turns, of the first seed's.
Every line it runs is printed, continues what is there, and can be run by itself.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from training import lines
from vla.contracts import registry
from vla.statistics import wilson

HEADS = {
    "diffusion": ("diffusion", "sample"),
    "flow_matching": ("flow_matching", "velocity"),
    "flow_matching_sample": ("flow_matching", "sample"),
    "diffusion_epsilon": ("diffusion", "epsilon"),
}
"""Head and what its network predicts, by what it is called here."""
WIDTH = 110
"""Columns of the table."""
CALLS = 300
"""Timed decisions of each policy."""


def record(task: str, episodes: int, out: Path) -> list[str]:
    """Return the line, as words after `vla`, that records what all heads learn from."""
    return ["demos", task, "--episodes", str(episodes), "--out", str(_data(task, out))]


def train(task: str, head: str, seed: int, updates: int, out: Path) -> list[str]:
    """Return the line that trains one policy, which is judged afterwards."""
    kind, prediction = HEADS[head]
    return [
        "train", "--recipe", task, "--data", str(_data(task, out)),
        "--policy.head.type", kind, "--policy.head.prediction", prediction,
        "--seed", str(seed), "--steps", str(updates), "--eval.every", "0",
        "--eval.final-episodes", "0", "--out", str(_run(task, head, seed, out)),
    ]  # fmt: skip


def export(task: str, head: str, seed: int, steps: int, out: Path) -> list[str]:
    """Return the line that exports it with so many steps per decision."""
    run = _run(task, head, seed, out)
    return ["export", str(run), "--steps", str(steps), "--out", str(_exported(run, steps))]


def judge(policy: Path, episodes: int, seed: int) -> list[str]:
    """Return the line that tests an exported policy."""
    return [
        "eval", str(policy), "--episodes", str(episodes), "--seed", str(seed), "--videos", "0",
        "--out", str(_judged(policy)),
    ]  # fmt: skip


def clock(policies: list[Path], out: Path) -> list[str]:
    """Return the line that times several, which take turns."""
    named = [str(policy) for policy in policies]
    return ["bench", "compare", *named, "--episodes", "0", "--calls", str(CALLS), "--out", str(out)]


def table(task: str, heads: list[str], seeds: list[int], sampling: list[int], out: Path) -> Table:
    """Return one line per head and number of steps, pooled over seeds."""
    sheet = Table(title=f"{task}: success on the same episodes; one decision, batch 1, one core")
    for column in ("head", "steps", "by seed", "all", "95 %", "p50, ms", "p99, ms"):
        sheet.add_column(column, justify="left" if column == "head" else "right")
    times = {one["policy"]: one for one in _read(_times(task, out) / "compare.json")}
    for head in heads:
        for steps in sampling:
            policies = [_exported(_run(task, head, seed, out), steps) for seed in seeds]
            found = [_read(_judged(p) / "evaluation.json") for p in policies]
            good, trials = (sum(fn(one["success"]) for one in found) for fn in (sum, len))
            low, high = wilson(good, trials)
            took = times[str(policies[0])]
            sheet.add_row(
                head, str(steps), " ".join(f"{one['rate']:.1%}" for one in found),
                f"{good / trials:.1%}", f"{low:.1%} to {high:.1%}", f"{1e3 * took['p50_s']:.2f}",
                f"{1e3 * took['p99_s']:.2f}",
            )  # fmt: skip
    return sheet


def study(task: str, args: argparse.Namespace, console: Console) -> Table:
    """Run what is missing of one task."""
    recipe = registry.load("training.recipes", task).recipe()
    out, made = args.out, []
    lines.must(record(task, args.demos or recipe.demos.episodes, out), console)
    for seed in args.seeds:
        for head in args.heads:
            lines.must(train(task, head, seed, args.steps or recipe.steps, out), console)
            for steps in args.sampling:
                policy = _exported(_run(task, head, seed, out), steps)
                if not policy.exists():
                    lines.must(export(task, head, seed, steps, out), console)
                if not (_judged(policy) / "evaluation.json").exists():
                    lines.must(judge(policy, args.episodes, args.seed), console)
                if seed == args.seeds[0]:
                    made.append(policy)
    if not (_times(task, out) / "compare.json").exists():
        lines.must(clock(made, _times(task, out)), console)
    return table(task, args.heads, args.seeds, args.sampling, out)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _data(task: str, out: Path) -> Path:
    return out / f"data-{task}"


def _run(task: str, head: str, seed: int, out: Path) -> Path:
    return out / f"{task}-{head}-{seed}"


def _exported(run: Path, steps: int) -> Path:
    return run.with_name(f"{run.name}-steps{steps}")


def _judged(policy: Path) -> Path:
    return policy.with_name(f"{policy.name}-judged")


def _times(task: str, out: Path) -> Path:
    return out / f"times-{task}"


def main(argv: list[str] | None = None) -> int:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", nargs="+", default=["reach", "pick_place"], help="recipes")
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of training")
    parser.add_argument("--steps", type=int, default=0, help="updates; the recipe's own if 0")
    parser.add_argument("--demos", type=int, default=0, help="episodes; the recipe's own if 0")
    parser.add_argument("--sampling", nargs="+", type=int, default=[1, 2, 4, 10],
                        help="steps of a decision")  # fmt: skip
    parser.add_argument("--episodes", type=int, default=200, help="test episodes of each policy")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the test episodes")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    args, console = parser.parse_args(argv), Console()
    sheets = [study(task, args, console) for task in args.task]
    for sheet in sheets:
        Console(width=WIDTH).print(sheet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
