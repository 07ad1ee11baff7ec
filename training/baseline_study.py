"""The study of baselines: LeRobot's policies beside ours, on the same data, seeds and episodes.

`python -m training.baseline_study --task pick_place cue_colour --minutes 20 --out runs/baselines`

Every policy of a task is trained for the same wall time on one CPU core, so a large network makes
fewer updates; `--steps` gives all the same updates instead. Every line it runs is printed,
continues what is there, and can be run by itself.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from training import compare, host, lines, report_page
from training.metrics import read_metrics
from vla import files, opening
from vla.contracts import registry
from vla.interrupted import Interrupted
from vla.statistics import wilson

TASKS = ("pick_place", "cue_colour", "put_back")
"""Recipes, and tasks, that are studied unless others are named."""
POLICIES: dict[str, tuple[str, ...]] = {
    "ours": (),
    "none": ("--policy.memory.type", "none"),
    "act": ("--policy.type", "act"),
    "diffusion": ("--policy.type", "lerobot_diffusion"),
    "smolvla": ("--policy.type", "smolvla"),
}
"""Words that make a policy of a recipe, by what it is called here."""
NAMES = {
    "ours": "ours", "none": "ours without memory", "act": "LeRobot ACT",
    "diffusion": "LeRobot Diffusion Policy", "smolvla": "LeRobot SmolVLA",
}  # fmt: skip
SMALL_VLM = ("--policy.model", "random", "--policy.learns", "all", "--policy.layers", "0")
PACED, WARM = 8, 3
"""Updates by which a pace is measured, and those of them before the clock counts."""
WARMUP = 100
"""Most updates over which the learning rate rises."""
RECORD_S, EPISODE_S, OPEN_S = 0.4, 1.0, 60.0
"""Rough times, for the estimate: of a demonstration, of a test episode, of starting a line."""
WIDTH = 200
"""Columns of the table."""
STOPPED = 130
"""Exit code of a line that Ctrl-C ended."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is studied."""

    tasks: tuple[str, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    minutes: float
    steps: int
    demos: int
    episodes: int
    calls: int
    out: Path
    smolvlm: str
    more: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        least = {"minutes": 0.01, "steps": 0, "demos": 0, "episodes": 1, "calls": 10}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least {low}")

    def data(self, task: str) -> Path:
        """Where demonstrations are."""
        return self.out / f"data-{task}"

    def run(self, task: str, policy: str, seed: int) -> Path:
        """Where a run is."""
        return self.out / f"{task}-{policy}-{seed}"

    def studied(self, task: str) -> tuple[str, ...]:
        """Return the policies of a task: without memory one is made twice of no recipe."""
        memory = _recipe(task).policy.memory
        bare = type(memory).__module__.endswith(".none")
        return tuple(name for name in self.policies if not (bare and name == "none"))

    def demonstrations(self, task: str) -> int:
        """How many are recorded."""
        return self.demos or _recipe(task).demos.episodes

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every task with each of its policies."""
        for task in self.tasks:
            for policy in self.studied(task):
                yield task, policy


def claim(study: Study) -> None:
    """Take the folder for this study, whose tasks, policies and seeds may grow.

    Raises:
        ValueError: it holds one with other settings.
    """
    path = study.out / "study.json"
    names = ("minutes", "steps", "demos", "episodes", "smolvlm", "more")
    wanted = {name: getattr(study, name) for name in names} | {"more": list(study.more)}
    study.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        files.write_json(path, wanted)
        return
    found = json.loads(path.read_text())
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"{study.out} holds a study with {name} {found.get(name)!r}, got {value!r}; choose "
                "another --out, or go on with the same"
            )


def record(study: Study, task: str) -> list[str]:
    """Return the line, as words after `vla`, that records a task's demonstrations."""
    count = str(study.demonstrations(task))
    return ["demos", task, "--episodes", count, "--out", str(study.data(task))]


def train(
    study: Study, task: str, policy: str, seed: int, steps: int, episodes: int, out: Path
) -> list[str]:
    """Return the line that trains and tests a policy."""
    vlm: tuple[str, ...] = ()
    if policy == "smolvla":
        vlm = ("--policy.model", study.smolvlm) if study.smolvlm else SMALL_VLM
    return [
        "train", "--recipe", task, *POLICIES[policy], *vlm, "--data", str(study.data(task)),
        "--steps", str(steps), "--seed", str(seed), "--threads", "1",
        "--optimiser.warmup", str(min(WARMUP, steps // 10)),
        "--eval.every", "0", "--eval.final-episodes", str(episodes), *study.more,
        "--out", str(out),
    ]  # fmt: skip


def paces(study: Study, run: Callable[[list[str]], int]) -> dict[str, float]:
    """Return the seconds of an update of every policy of every task; measured once."""
    path = study.out / "paces.json"
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    for task, policy in study.pairs():
        key = f"{task} {policy}"
        if key in found:
            continue
        place = study.out / f"pace-{task}-{policy}"
        shutil.rmtree(place, ignore_errors=True)
        words = train(study, task, policy, study.seeds[0], PACED, 0, place)
        if run([*words, "--log-every", "1"]):
            continue
        # The fastest: what else the machine does at that moment must not choose a budget.
        found[key] = min(float(row["seconds"]) for row in read_metrics(place)[WARM:])
        files.write_json(path, found)
        shutil.rmtree(place)
    return found


def row(study: Study, task: str, policy: str) -> dict[str, Any] | None:
    """Return what was found of a policy, pooled over seeds, as JSON types; None if none is done."""
    runs = [study.run(task, policy, seed) for seed in study.seeds]
    runs = [run for run in runs if (run / "evaluation.json").exists()]
    if not runs:
        return None
    tests = [json.loads((run / "evaluation.json").read_text()) for run in runs]
    told = json.loads((runs[0] / "checkpoint" / "policy.json").read_text())
    success = [won for test in tests for won in test["success"]]
    decided = [chose for test in tests for chose in test["decided"]]
    chance = report_page.chance(tests[0]["task"])
    # A choice is what the rules of a memory task end an episode by.
    right = sum(won for won, chose in zip(success, decided, strict=True) if chose)
    return {
        "task": task, "policy": policy, "seeds": len(runs), "by_seed": [t["rate"] for t in tests],
        "success": [sum(success), len(success)],
        "choices": None if chance is None else [right, sum(decided)], "chance": chance,
        "parameters": told["parameters"], "updates": told["provenance"]["step"],
        "train_s": float(np.mean([_trained_s(run) for run in runs])),
        "episodes_of_a_seed": len(tests[0]["success"]), "test_seed": tests[0]["seed"],
    }  # fmt: skip


def latency(study: Study, task: str, found: list[str]) -> dict[str, list[float]]:
    """Return p50 and p99 of a decision in seconds, by policy; they take turns. Measured once."""
    path = study.out / f"latency-{task}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if list(known) != found:
        host.prepare(1)
        folders = (_first(study, task, policy) for policy in found)
        opened = [opening.open_(folder, threads=1) for folder in folders]
        recipe = _recipe(task)
        seconds = compare.times(
            [one.policy for one in opened], compare.observed(opened[0].policy, recipe.task),
            study.calls, seed=0,
        )  # fmt: skip
        figures = np.percentile(seconds, compare.SHARES, axis=0).T.tolist()
        known = dict(zip(found, figures, strict=True))
        files.write_json(path, known)
    return known


def sheet(rows: list[dict[str, Any]]) -> Table:
    """Return what was found as a table."""
    table = Table(
        title="policies trained on the same demonstrations, tested on the same episodes; a "
        "decision at batch 1 on one core"
    )
    columns = ("task", "policy", "success, 95 %", "by seed", "right of its choices, 95 %", "chance",
               "parameters", "updates", "trained, min", "p50, ms", "p99, ms")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for one in rows:
        guess = "" if one["chance"] is None else f"{one['chance']:.0%}"
        table.add_row(
            one["task"], NAMES[one["policy"]], _share(one["success"]),
            " ".join(f"{rate:.1%}" for rate in one["by_seed"]), _share(one["choices"]), guess,
            f"{one['parameters']:,}", f"{one['updates']:,}", f"{one['train_s'] / 60:.1f}",
            f"{1e3 * one['p50_s']:.1f}", f"{1e3 * one['p99_s']:.1f}",
        )  # fmt: skip
    return table


def estimate(study: Study, pace: dict[str, float]) -> str:
    """Return how long all of it takes, in a sentence; rough."""
    train_s = [
        study.steps * pace.get(f"{task} {policy}", 0.0) if study.steps else 60 * study.minutes
        for task, policy in study.pairs()
    ]
    count = len(train_s) * len(study.seeds)
    training = sum(train_s) * len(study.seeds)
    testing = count * (OPEN_S + study.episodes * EPISODE_S)
    data = sum(study.demonstrations(task) for task in study.tasks) * RECORD_S
    budget = f"{study.steps} updates" if study.steps else f"{study.minutes:g} minutes"
    hours = (training + testing + data) / 3600
    told = f"training {training / 3600:.1f} h, " if training else "training not yet measured, "
    return (
        f"{count} trainings of {budget} on one core each: about {hours:.1f} h ({told}tests and "
        f"starts {testing / 3600:.1f} h, demonstrations {data / 3600:.1f} h); what is already "
        "there is not done again"
    )


def study_all(study: Study, console: Console) -> int:
    """Run what is missing and print the table; return 0 if nothing failed.

    Raises:
        Interrupted: Ctrl-C ended a line.
    """
    failed: list[str] = []

    def run(words: list[str]) -> int:
        code = lines.run(words, console)
        if code == STOPPED:
            raise Interrupted("what is done is kept")
        if code:
            failed.append(f"vla {' '.join(words)}")
        return code

    claim(study)
    console.print(estimate(study, {}), highlight=False)
    for task in study.tasks:
        if run(record(study, task)):
            return 1  # nothing can be learned without
    pace = paces(study, run)
    if study.steps:
        console.print(estimate(study, pace), highlight=False)
    for seed in study.seeds:  # a first row of every policy before a second
        for task, policy in study.pairs():
            place = study.run(task, policy, seed)
            seconds = pace.get(f"{task} {policy}")
            if (place / "evaluation.json").exists() or seconds is None:
                continue
            steps = study.steps or max(1, round(60 * study.minutes / seconds))
            run(train(study, task, policy, seed, steps, study.episodes, place))
    told = tabled(study)
    files.write_json(study.out / "baselines.json", told)
    Console(highlight=False, width=WIDTH).print(sheet(told))
    console.print(f"figures: {study.out / 'baselines.json'}", highlight=False)
    for line in failed:
        console.print(f"failed: {line}", style="yellow", highlight=False, markup=False)
    return 1 if failed else 0


def tabled(study: Study) -> list[dict[str, Any]]:
    """Return every row that there is, with the times of its decisions."""
    told = []
    for task in study.tasks:
        rows = [one for p in study.studied(task) if (one := row(study, task, p)) is not None]
        if rows:
            times = latency(study, task, [one["policy"] for one in rows])
            told += [
                {**one, "p50_s": times[one["policy"]][0], "p99_s": times[one["policy"]][1]}
                for one in rows
            ]
    return told


def _recipe(task: str) -> Any:
    return registry.load("training.recipes", task).recipe()


def _first(study: Study, task: str, policy: str) -> Path:
    """Return the first run of a policy that has been tested."""
    runs = (study.run(task, policy, seed) for seed in study.seeds)
    return next(run for run in runs if (run / "evaluation.json").exists())


def _trained_s(run: Path) -> float:
    return sum(float(one["seconds"]) for one in read_metrics(run) if "samples_per_s" in one)


def _share(found: list[int] | None) -> str:
    """Return a share with its Wilson interval; nothing of nothing."""
    if found is None or not found[1]:
        return ""
    low, high = wilson(*found)
    return f"{found[0] / found[1]:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def parse(argv: list[str] | None) -> Study:
    """Return what is to be studied.

    Raises:
        ValueError: an unknown task, or a number out of range.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--task", nargs="+", default=list(TASKS), metavar="RECIPE", help="tasks, by their recipes")
    add("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of weights and batches")
    add("--minutes", type=float, default=20.0, help="training of each policy, wall time")
    add("--steps", type=int, default=0, help="updates of each policy, in place of --minutes")
    add("--demos", type=int, default=0, help="demonstrations; 0 for as many as the recipe says")
    add("--episodes", type=int, default=200, help="test episodes of each policy")
    add("--calls", type=int, default=300, help="timed decisions of each policy")
    add("--smolvlm", default="", help="folder of a SmolVLM; a small random one if not given")
    add("--out", type=Path, required=True, help="folder of the study")
    add("--more", nargs=argparse.REMAINDER, default=[], help="further words for every `vla train`")
    args = parser.parse_args(argv)
    for task in args.task:
        registry.check("training.recipes", task)
    return Study(
        tasks=tuple(args.task), policies=tuple(args.policies), seeds=tuple(args.seeds),
        minutes=args.minutes, steps=args.steps, demos=args.demos, episodes=args.episodes,
        calls=args.calls, out=args.out, smolvlm=args.smolvlm, more=tuple(args.more),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the study; return its exit code."""
    console = Console(soft_wrap=True)
    try:
        return study_all(parse(argv), console)
    except Interrupted as stop:
        console.print(f"interrupted: {stop}; the same command goes on from there")
        return STOPPED
    except ValueError as error:
        console.print(f"baseline_study: {error}", highlight=False, markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
