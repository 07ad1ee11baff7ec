"""The study of baselines: LeRobot's policies next to ours, on the same data, seeds and episodes.

`python -m benchmarks.training.baseline_study --task pick_place cue_colour --minutes 20 --out
runs/baselines`

Every policy of a task trains for the same wall time on one CPU core, so a large network makes fewer
updates; `--steps` gives all of them the same number of updates instead. Every command is printed,
resumes, and can be run by itself.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.training import compare
from training.core import runtime
from training.core.metrics import read_metrics
from training.report import page
from vla import cli
from vla.contracts import registry
from vla.contracts.config import type_name, validate_min
from vla.runtime import policy_loader
from vla.utils import files
from vla.utils.interrupted import Interrupted

POLICIES: dict[str, tuple[str, ...]] = {
    "ours": (),
    "none": ("--policy.memory.type", "none"),
    "act": ("--policy.type", "act"),
    "diffusion": ("--policy.type", "lerobot_diffusion"),
    "smolvla": ("--policy.type", "smolvla"),
}
"""Flags that choose a policy of a recipe, by its name in this study."""
NAMES = {
    "ours": "ours", "none": "ours without memory", "act": "LeRobot ACT",
    "diffusion": "LeRobot Diffusion Policy", "smolvla": "LeRobot SmolVLA",
}  # fmt: skip
SMALL_VLM = (
    "--policy.model", "random", "--policy.no-train-expert-only", "--policy.layers", "0",
)  # fmt: skip
PACED, WARM = 8, 3
"""Updates that measure a pace, and those of them before the clock counts."""
WARMUP = 100
"""Most updates over which the learning rate rises."""
RECORD_S, EPISODE_S, OPEN_S = 0.4, 1.0, 60.0
"""Rough times for the estimate: of a demonstration, a test episode, the start of a command."""
WIDTH = 200
"""Columns of the table."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Train LeRobot's policies and ours on the same demonstrations and test them alike."""

    task: tuple[str, ...] = ("pick_place", "cue_colour", "put_back")
    """Tasks, by their recipes."""
    policies: tuple[Literal["ours", "none", "act", "diffusion", "smolvla"], ...] = (
        "ours", "none", "act", "diffusion", "smolvla",
    )  # fmt: skip
    """Policies; `none` is ours without memory."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of weights and batches."""
    minutes: float = 20.0
    """Training of each policy, wall time."""
    steps: int = 0
    """Updates of each policy, instead of `minutes`."""
    demos: int = 0
    """Demonstrations of each task; 0 for as many as its recipe asks for."""
    episodes: int = 200
    """Test episodes of each policy."""
    calls: int = 300
    """Timed decisions of each policy."""
    smolvlm: str = ""
    """Folder of a SmolVLM; a small random one if empty."""
    out: Path
    """Folder of the study."""
    more: tuple[str, ...] = ()
    """Further flags of every `vla train`; all words after this flag."""

    def __post_init__(self) -> None:
        """Refuse unknown tasks and numbers out of range."""
        if not self.minutes >= 0.01:
            raise ValueError(f"minutes: got {self.minutes}, expected at least 0.01")
        validate_min(self, steps=0, demos=0, episodes=1, calls=10)
        for task in self.task:
            registry.check("training.recipes", task)

    def data(self, task: str) -> Path:
        """Return the folder of a task's demonstrations."""
        return self.out / f"data-{task}"

    def run(self, task: str, policy: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.out / f"{task}-{policy}-{seed}"

    def studied(self, task: str) -> tuple[str, ...]:
        """Return the policies of a task: `none` only where the recipe has a memory."""
        bare = type_name(_recipe(task).policy.memory) == "none"
        return tuple(name for name in self.policies if not (bare and name == "none"))

    def demonstrations(self, task: str) -> int:
        """Return the number of demonstrations of a task."""
        return self.demos or _recipe(task).demos.episodes

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every task with each of its policies."""
        for task in self.task:
            for policy in self.studied(task):
                yield task, policy


def claim(study: Study) -> None:
    """Take the folder for this study, whose tasks, policies and seeds may grow.

    Raises:
        ValueError: it holds a study with other settings.
    """
    path = study.out / "study.json"
    names = ("minutes", "steps", "demos", "episodes", "smolvlm", "more")
    settings = {name: asdict(study)[name] for name in names} | {"more": list(study.more)}
    study.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        files.write_json(path, settings)
        return
    stored = harness.load(path)
    for name, value in settings.items():
        if stored.get(name) != value:
            raise ValueError(
                f"{study.out} holds a study with {name} {stored.get(name)!r}, got {value!r}; "
                "choose another --out, or continue with the same"
            )


def record(study: Study, task: str) -> list[str]:
    """Return the command, as words after `vla`, that records a task's demonstrations."""
    count = str(study.demonstrations(task))
    return ["demos", task, "--episodes", count, "--out", str(study.data(task))]


def train(
    study: Study, task: str, policy: str, seed: int, steps: int, episodes: int, out: Path
) -> list[str]:
    """Return the command that trains and tests a policy."""
    vlm: tuple[str, ...] = ()
    if policy == "smolvla":
        vlm = ("--policy.model", study.smolvlm) if study.smolvlm else SMALL_VLM
    return [
        "train", "--recipe", task, *POLICIES[policy], *vlm, "--dataset", str(study.data(task)),
        "--steps", str(steps), "--seed", str(seed), "--threads", "1",
        "--optimizer.warmup-steps", str(min(WARMUP, steps // 10)),
        "--eval.every", "0", "--eval.final-episodes", str(episodes), *study.more,
        "--out", str(out),
    ]  # fmt: skip


def paces(study: Study, run: Callable[[list[str]], int]) -> dict[str, float]:
    """Return the seconds of an update of every policy of every task; measured once."""
    results = harness.Results(study.out / "paces.json")
    for task, policy in study.pairs():
        key = f"{task} {policy}"
        if key in results.cells:
            continue
        place = study.out / f"pace-{task}-{policy}"
        shutil.rmtree(place, ignore_errors=True)
        words = train(study, task, policy, study.seeds[0], PACED, 0, place)
        if run([*words, "--log-every", "1"]):
            continue
        # The fastest: other load on the machine at that moment must not choose a budget.
        results.cells[key] = min(float(row["seconds"]) for row in read_metrics(place)[WARM:])
        results.save()
        shutil.rmtree(place)
    return results.cells


def row(study: Study, task: str, policy: str) -> dict[str, Any] | None:
    """Return the results of a policy, pooled over seeds, as JSON types; None if none is done."""
    runs = [study.run(task, policy, seed) for seed in study.seeds]
    runs = [run for run in runs if (run / "evaluation.json").exists()]
    if not runs:
        return None
    tests = [harness.evaluation(run) for run in runs]
    saved = harness.load(runs[0] / "checkpoint" / "policy.json")
    success = [ok for test in tests for ok in test["success"]]
    decided = [chose for test in tests for chose in test["decided"]]
    chance = page.chance(tests[0]["task"])
    # By the rules of a memory task, a choice ends the episode.
    right = sum(ok for ok, chose in zip(success, decided, strict=True) if chose)
    return {
        "task": task, "policy": policy, "seeds": len(runs), "by_seed": [t["rate"] for t in tests],
        "success": [sum(success), len(success)],
        "choices": None if chance is None else [right, sum(decided)], "chance": chance,
        "parameters": saved["parameters"], "updates": saved["provenance"]["step"],
        "train_s": float(np.mean([_trained_s(run) for run in runs])),
        "episodes_of_a_seed": len(tests[0]["success"]), "test_seed": tests[0]["seed"],
    }  # fmt: skip


def latency(study: Study, task: str, policies: list[str]) -> dict[str, list[float]]:
    """Return p50 and p99 of a decision in seconds, by policy; they take turns. Measured once."""
    path = study.out / f"latency-{task}.json"
    stored = harness.load(path) if path.exists() else {}
    if list(stored) == policies:
        return stored
    runtime.prepare(1)
    folders = (_first(study, task, policy) for policy in policies)
    opened = [policy_loader.open_policy(folder, threads=1) for folder in folders]
    seconds = compare.times(
        [loaded.policy for loaded in opened],
        compare.observed(opened[0].policy, _recipe(task).task), study.calls, seed=0,
    )  # fmt: skip
    percentiles = np.percentile(seconds, compare.SHARES, axis=0).T.tolist()
    measured = dict(zip(policies, percentiles, strict=True))
    files.write_json(path, measured)
    return measured


def sheet(rows: list[dict[str, Any]]) -> Table:
    """Return the results as a table."""
    return harness.table(
        "policies trained on the same demonstrations, tested on the same episodes; a "
        "decision at batch 1 on one core",
        ("task", "policy", "success, 95 %", "by seed", "right of its choices, 95 %", "chance",
         "parameters", "updates", "trained, min", "p50, ms", "p99, ms"),
        [
            (
                row["task"], NAMES[row["policy"]], harness.share(*row["success"]),
                " ".join(f"{rate:.1%}" for rate in row["by_seed"]),
                harness.share(*(row["choices"] or (0, 0))),
                "" if row["chance"] is None else f"{row['chance']:.0%}",
                f"{row['parameters']:,}", f"{row['updates']:,}", f"{row['train_s'] / 60:.1f}",
                f"{1e3 * row['p50_s']:.1f}", f"{1e3 * row['p99_s']:.1f}",
            )
            for row in rows
        ],
        left=2,
    )  # fmt: skip


def estimate(study: Study, pace: dict[str, float]) -> str:
    """Return how long the study takes, in a sentence; rough."""
    train_s = [
        study.steps * pace.get(f"{task} {policy}", 0.0) if study.steps else 60 * study.minutes
        for task, policy in study.pairs()
    ]
    count = len(train_s) * len(study.seeds)
    training = sum(train_s) * len(study.seeds)
    testing = count * (OPEN_S + study.episodes * EPISODE_S)
    data = sum(study.demonstrations(task) for task in study.task) * RECORD_S
    budget = f"{study.steps} updates" if study.steps else f"{study.minutes:g} minutes"
    hours = (training + testing + data) / 3600
    training_h = f"training {training / 3600:.1f} h" if training else "training not yet measured"
    return (
        f"{count} trainings of {budget} on one core each: about {hours:.1f} h ({training_h}, tests "
        f"and starts {testing / 3600:.1f} h, demonstrations {data / 3600:.1f} h); finished parts "
        "are not repeated"
    )


def study_all(study: Study, console: Console) -> int:
    """Run the missing parts and print the table; return 0 if nothing failed.

    Raises:
        Interrupted: Ctrl-C ended a command.
    """
    failed: list[str] = []

    def run(words: list[str]) -> int:
        code = harness.run(words, console)
        if code == harness.INTERRUPTED:
            raise Interrupted("results so far are saved")
        if code:
            failed.append(f"vla {' '.join(words)}")
        return code

    claim(study)
    console.print(estimate(study, {}), highlight=False)
    for task in study.task:
        if run(record(study, task)):
            return 1  # nothing can be trained without demonstrations
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
    rows = tabled(study)
    files.write_json(study.out / "baselines.json", rows)
    harness.show(sheet(rows), WIDTH)
    console.print(f"results: {study.out / 'baselines.json'}", highlight=False)
    for line in failed:
        console.print(f"failed: {line}", style="yellow", highlight=False, markup=False)
    return 1 if failed else 0


def tabled(study: Study) -> list[dict[str, Any]]:
    """Return every finished row, with the times of its decisions."""
    finished = []
    for task in study.task:
        rows = [r for p in study.studied(task) if (r := row(study, task, p)) is not None]
        if rows:
            times = latency(study, task, [r["policy"] for r in rows])
            finished += [
                {**r, "p50_s": times[r["policy"]][0], "p99_s": times[r["policy"]][1]} for r in rows
            ]
    return finished


def _recipe(task: str) -> Any:
    return registry.load("training.recipes", task).recipe()


def _first(study: Study, task: str, policy: str) -> Path:
    """Return the first tested run of a policy."""
    runs = (study.run(task, policy, seed) for seed in study.seeds)
    return next(run for run in runs if (run / "evaluation.json").exists())


def _trained_s(run: Path) -> float:
    return sum(float(row["seconds"]) for row in read_metrics(run) if "samples_per_s" in row)


def main(argv: list[str]) -> int:
    """Run the study; return its exit code.

    Raises:
        ValueError: an unknown task, or a number out of range.
    """
    study = harness.read(Study, argv, "training.baseline_study")
    return study_all(study, Console(soft_wrap=True))


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.baseline_study:main", sys.argv[1:]))
