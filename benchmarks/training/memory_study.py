"""What does a memory buy? Success of every memory against delay and distractors, with the ceiling.

`python -m benchmarks.training.memory_study --tasks cue_colour late_query --out runs/memory`

All memories of a task learn from the same demonstrations, with delays of 16 to 128 control steps
and no distractors, for the same number of updates, with the same head; longer delays and
distractors come in tests alone. With `--teacher-steps` they all begin with the vision of one
policy, which was trained with the transformer; its first layers are frozen and computed once for
all, which takes a fraction of the time. `none` is the control: it may not be above a task's
ceiling, with 99 % over all its tests. Every command is printed, and resumes.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import harness
from benchmarks.training.evaluate_together import evaluate_together
from sim import vec_env
from training.commands import curve
from training.core import runtime
from vla import cli
from vla.contracts.config import validate_min
from vla.policies.vla import VLAPolicy
from vla.runtime import policy_loader
from vla.utils import charts, files
from vla.utils.statistics import wilson

MEMORIES: dict[str, tuple[str, ...]] = {
    "none": ("none",),
    "last 4": ("bank", "--policy.memory.eviction", "fifo", "--policy.memory.slots", "4"),
    "last 16": ("bank", "--policy.memory.eviction", "fifo"),
    "sink": ("bank", "--policy.memory.eviction", "sink"),
    "even": ("bank", "--policy.memory.eviction", "even"),
    "memory_vla": ("memory_vla",),
    "gru": ("gru",),
    "lru": ("lru",),
    "ffm": ("ffm",),
    "deltanet": ("deltanet",),
    "transformer": ("transformer", "--policy.memory.hidden-size", "48"),
    "rmt": ("rmt", "--policy.memory.layers", "1"),
    "hcam": ("hcam", "--policy.memory.hidden-size", "48"),
    "bank": ("bank",),
    "order": ("bank", "--policy.memory.time", "order"),
    "events": ("events",),
}  # fmt: skip
"""Flags after `--policy.memory.type`, by name in this study. With them all policies with a memory
are equally large, within 10 %; the memories alone have 30,000 to 140,000 weights."""
SHORT = {
    "cue_colour": 9, "put_back": 13, "sequence": 24, "late_query": 9, "shell": 16, "count": 25,
    "visit_all": 22, "wait_then_press": 27, "day_log": 22,
    "latest_cue": 16, "named_once": 16,
}  # fmt: skip
"""`--algo.short-decisions` of each task: about a quarter of the demonstrations are not longer."""
LUCK = 0.01
"""Chance that a control without a leak is taken for one with a leak, over all tests together."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare memories by success against delay and distractors."""

    tasks: tuple[str, ...] = tuple(SHORT)
    """Memory tasks."""
    memories: tuple[str, ...] = tuple(MEMORIES)
    """Memories."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of training."""
    delays: tuple[int, ...] = (16, 64, 128, 256, 512, 1024)
    """Delays of the tests, control steps."""
    distractors: tuple[int, ...] = (0, 8)
    """Distractor events of the tests."""
    demos: int = 1000
    """Demonstrations of each task."""
    train_distractors: int = 0
    """Most distractor events of each of them, whose number is drawn from 0 on; the policy that
    learns to see for the others has none."""
    steps: int = 1000
    """Updates."""
    episodes: int = 200
    """Test episodes of each policy, delay and number of distractors."""
    seed: int = 7000
    """Seed of the test episodes."""
    threads: int = 2
    """CPU threads."""
    out: Path
    """Folder of the study."""
    teacher_steps: int = 0
    """Updates of a policy with the transformer on each task, with whose vision all others begin,
    its first layers frozen and computed once for all; 0 if each learns vision by itself."""
    teacher_task: str = ""
    """The one task on which this policy learns for all tasks; empty: on each for itself."""
    more: tuple[str, ...] = ()
    """Further flags of every `vla train`, after --more."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(
            self, demos=1, steps=1, episodes=1, seed=0, threads=1, teacher_steps=0,
            train_distractors=0,
        )  # fmt: skip
        if self.teacher_task and self.teacher_task not in SHORT:
            raise ValueError(
                f"teacher_task: got {self.teacher_task!r}, expected one of {', '.join(SHORT)}"
            )
        harness.check_names("tasks", self.tasks, SHORT)
        harness.check_names("memories", self.memories, MEMORIES)
        curve.check_delays(self.delays, self.distractors)

    def data(self, task: str, distractors: int) -> Path:
        """Return the folder of a task's demonstrations with so many distractors."""
        return self.out / f"data-{task}{f'-{distractors}' if distractors else ''}"

    def run(self, task: str, memory: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.out / f"{task}-{memory.replace(' ', '')}-{seed}"

    def teacher(self, task: str) -> Path:
        """Return the folder of the run whose vision the others take over."""
        return self.out / f"{self.teacher_task or task}-teacher"

    def cells(self) -> Iterator[tuple[int, int]]:
        """Yield delay and distractors of every test."""
        yield from curve.cells(self.delays, self.distractors)


def record(study: Study, task: str, distractors: int) -> list[str]:
    """Return the command, as words after `vla`, that records a task's demonstrations."""
    count, out = str(study.demos), str(study.data(task, distractors))
    return ["demos", task, *_trained(distractors), "--episodes", count, "--out", out]


def _trained(distractors: int) -> tuple[str, ...]:
    return (
        "--task.delay-steps", "16", "128", "--task.distractors", str(distractors),
        *(("--task.random-distractors",) if distractors else ()),
    )  # fmt: skip


FROZEN = (
    "--policy.backbone.frozen", "--cache-frozen-features", "--algo.random-shift-px", "0",
    "--algo.brightness-jitter", "0",
)  # fmt: skip
"""Flags of a policy that takes over a vision encoder: cached images cannot be augmented."""


def train(study: Study, task: str, memory: str, seed: int) -> list[str]:
    """Return the command that trains a policy."""
    vision = ["--pretrained-vision-encoder", str(study.teacher(task)), *FROZEN]
    return [
        *_train(study, task, MEMORIES[memory], study.steps, seed, study.train_distractors),
        *(vision if study.teacher_steps else ()),
        *study.more, "--out", str(study.run(task, memory, seed)),
    ]  # fmt: skip


def teach(study: Study, task: str) -> list[str]:
    """Return the command that trains the policy whose vision the others take over."""
    task = study.teacher_task or task
    command = _train(study, task, MEMORIES["transformer"], study.teacher_steps, 0, distractors=0)
    return [*command, *study.more, "--out", str(study.teacher(task))]


def _train(
    study: Study, task: str, memory: tuple[str, ...], steps: int, seed: int, distractors: int
) -> list[str]:
    return [
        "train", "--recipe", "cue_colour", "--task", task, *_trained(distractors),
        "--policy.memory.type", *memory, "--dataset", str(study.data(task, distractors)),
        "--algo.short-decisions", str(SHORT[task]), "--steps", str(steps),
        "--seed", str(seed), "--threads", str(study.threads), "--eval.final-episodes", "0",
    ]  # fmt: skip


def test(
    study: Study,
    memories: Sequence[str],
    task: str,
    seed: int,
    cell: tuple[int, int],
    episodes: int,
) -> list[dict[str, int]]:
    """Return how memories trained with a seed do at a delay with distractors, as JSON types, in
    the same episodes: those of the seed `episodes`.
    """
    policies = []
    for memory in memories:
        policy = policy_loader.open_policy(study.run(task, memory, seed), study.threads).policy
        assert isinstance(policy, VLAPolicy)
        policies.append(policy)
    asked = curve.with_delay(vec_env.load_task(task), *cell)
    found = evaluate_together(policies, asked, episodes=study.episodes, seed=episodes, quiet=False)
    return [
        curve.counted([o.success for o in ended], [o.terminated for o in ended]) for ended in found
    ]


def leaks(ceiling: float, success: int, episodes: int, tests: int) -> bool:
    """Return whether a success, of one of so many tests, is surely above a ceiling."""
    return wilson(success, episodes, NormalDist().inv_cdf(1 - LUCK / tests))[0] > ceiling


def normalised(ceiling: float, success: int, episodes: int) -> float:
    """Return success from the ceiling without memory, 0, to that of the experts, 1."""
    return (success / episodes - ceiling) / (1 - ceiling)


Cells = Mapping[tuple[str, str, int, int], tuple[int, int]]
"""Successes and episodes, all seeds together, by task, memory, delay and distractors."""


def pooled(study: Study, results: Mapping[str, Any]) -> Cells:
    """Return what has been tested so far."""
    cells = {}
    for task in study.tasks:
        for memory in study.memories:
            for delay, events in study.cells():
                found = [
                    results[key]
                    for seed in study.seeds
                    if (key := _key(task, memory, seed, delay, events)) in results
                ]
                if found:
                    cells[task, memory, delay, events] = (
                        sum(part["success"] for part in found),
                        sum(part["episodes"] for part in found),
                    )
    return cells


def rows(study: Study, cells: Cells, task: str, events: int) -> Iterator[tuple[str, ...]]:
    """Yield a memory and its success at every delay."""
    for memory in study.memories:
        found = [cells.get((task, memory, delay, events)) for delay in study.delays]
        if any(found):
            yield memory, *(harness.share(*part) if part else "" for part in found)


def scores(study: Study, cells: Cells) -> list[tuple[str, ...]]:
    """Return each memory's mean normalised score, by task and over tasks, the best first."""
    found: dict[str, list[float]] = {}
    for memory in study.memories:
        by_task = []
        for task in study.tasks:
            ceiling = vec_env.load_task(task).ceiling
            parts = [
                normalised(ceiling, *part)
                for delay, events in study.cells()
                if (part := cells.get((task, memory, delay, events)))
            ]
            by_task.append(float(np.mean(parts)) if parts else np.nan)
        found[memory] = by_task
    order = sorted(found, key=lambda memory: -float(np.nanmean([-1.0, *found[memory]])))
    return [
        (memory, *(f"{score:.2f}" for score in found[memory]), f"{np.mean(found[memory]):.2f}")
        for memory in order
        if not np.isnan(found[memory]).all()
    ]


def page(study: Study, cells: Cells) -> str:
    """Return the curves of every task as one self-contained page."""
    parts = []
    for task in study.tasks:
        ceiling = vec_env.load_task(task).ceiling
        for events in study.distractors:
            curves, names = [], []
            for memory in study.memories:
                points = [
                    (float(np.log2(delay)), part[0] / part[1])
                    for delay in study.delays
                    if (part := cells.get((task, memory, delay, events)))
                ]
                if points:
                    curves.append(points)
                    names.append(memory)
            if curves:
                ends = [float(np.log2(delay)) for delay in (study.delays[0], study.delays[-1])]
                curves.append([(end, ceiling) for end in ends])
                names.append("ceiling without memory")
                drawing = harness.plot(
                    curves, x="log2 of the delay in control steps", y="success", y_range=(0, 1)
                )
                legend = ", ".join(_legend(place, name) for place, name in enumerate(names))
                parts.append(f"<h2>{task}, {events} distractors</h2>{drawing}<p>{legend}</p>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Memories</title>'
    body = "".join(parts)
    return f"{head}<h1>Success against delay, trained on delays of 16 to 128</h1>{body}</html>"


def _legend(place: int, name: str) -> str:
    dashed = " (dashed)" if place >= len(charts.COLOURS) else ""
    return f'<span style="color:{charts.colour(place)}">&#9632;</span> {name}{dashed}'


def main(argv: list[str]) -> int:
    """Run what is missing and print the tables; exit code 1 if a control is above its ceiling."""
    study = harness.read(Study, argv, "training.memory_study")
    runtime.prepare(study.threads)
    console = Console(highlight=False, soft_wrap=True)
    names = (
        "demos", "steps", "episodes", "seed", "teacher_steps", "teacher_task", "train_distractors",
    )  # fmt: skip
    settings = {name: getattr(study, name) for name in names}
    settings["more"] = list(study.more)
    results = harness.Results(study.out / "results.json", settings, "cells")
    for task in study.tasks:
        harness.must(record(study, task, study.train_distractors), console)
        if study.teacher_steps:
            harness.must(record(study, study.teacher_task or task, 0), console)
            harness.must(teach(study, task), console)
    for seed in study.seeds:  # a first row of every memory before a second
        for task in study.tasks:
            for memory in study.memories:
                harness.must(train(study, task, memory, seed), console)
            for number, cell in enumerate(study.cells()):
                keys = {memory: _key(task, memory, seed, *cell) for memory in study.memories}
                missing = [memory for memory in keys if keys[memory] not in results.cells]
                if missing:
                    console.print(f"{task}, seed {seed}: delay {cell[0]}, {cell[1]} distractors")
                    # Other episodes in every cell: those of one seed have the same layouts.
                    episodes = study.seed + 1000 * seed + number
                    found = test(study, missing, task, seed, cell, episodes)
                    for memory, part in zip(missing, found, strict=True):
                        results.cells[keys[memory]] = part
                    results.save()
    return report(study, pooled(study, results.cells), console)


def report(study: Study, cells: Cells, console: Console) -> int:
    """Print the tables and write the page; return 1 if a control is above its ceiling."""
    sound, tests = True, sum(memory == "none" for _, memory, _, _ in cells)
    for task in study.tasks:
        ceiling = vec_env.load_task(task).ceiling
        for events in study.distractors:
            title = f"{task}, {events} distractors; ceiling without memory {ceiling:.1%}"
            columns = ("memory", *map(str, study.delays))
            harness.show(harness.table(title, columns, rows(study, cells, task, events)))
        for (name, memory, delay, events), found in cells.items():
            if name == task and memory == "none" and leaks(ceiling, *found, tests):
                sound = False
                console.print(
                    f"{task}: {harness.share(*found)} without memory at a delay of {delay} with "
                    f"{events} distractors, above the ceiling of {ceiling:.1%}: something leaks"
                )
    columns = ("memory", *study.tasks, "mean")
    harness.show(harness.table("normalised score, mean over tests", columns, scores(study, cells)))
    files.write_text(study.out / "curves.html", page(study, cells))
    console.print(f"results: {study.out / 'results.json'}, {study.out / 'curves.html'}")
    return 0 if sound else 1


def _key(task: str, memory: str, seed: int, delay: int, distractors: int) -> str:
    return f"{task} {memory} seed {seed} delay {delay} distractors {distractors}"


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.memory_study:main", sys.argv[1:]))
