"""What does a memory hold when it is needed? Recall of every memory, apart from acting.

`python -m benchmarks.training.recall_study --vision runs/cue_colour --out runs/recall`

All memories see the same decisions of the same episodes, from the beginning to go, through the
frozen vision of one policy. A memory learns together with a small readout to name what has to be
remembered; nothing acts, so that a memory costs minutes. Delays of 16 to 128 control steps and some
distractors come in training; what is tested may go beyond. The answers are uniform, so guessing
gives one over their number, and `none` may not be above it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks import harness
from benchmarks.training.evaluate_together import wait_for_go
from benchmarks.training.memory_speed import build
from benchmarks.training.memory_study import MEMORIES, leaks, normalised
from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from training.commands import curve
from training.core import pretrained, runtime
from training.core.optimizer import Optimizer, OptimizerConfig
from vla import checkpoint, cli
from vla.contracts.config import validate_min
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy
from vla.utils import files

AT_ONCE = 32
"""Environments, and episodes that are read at once in a test."""


def _what(task: Any, episode: Any) -> int:
    """Return which of K colours is right."""
    return int(task.right(episode))


def _where(task: Any, episode: Any) -> int:
    """Return at which of K places the right button stands, from the right to the left."""
    return _rank(episode.buttons_m, int(task.right(episode)))


def _rank(places_m: np.ndarray, number: int) -> int:
    azimuth = np.arctan2(places_m[:, 1], places_m[:, 0])
    return int((azimuth < azimuth[number]).sum())


ANSWERS: dict[str, Callable[[Any, Any], int]] = {
    "cue_colour": _what,
    "latest_cue": _what,
    "named_once": _what,
    "late_query": _where,
    "day_log": _where,
    "shell": _where,
    "put_back": lambda _, episode: _rank(episode.places_m, int(episode.cue)),
    "count": lambda _, episode: int(episode.cue),
    "wait_then_press": lambda _, episode: int(episode.cue),
    "sequence": lambda task, episode: int(
        np.polyval(episode.order, task.config.choices)  # a number for each order
    ),
}
"""What has to be known when the arm comes free, by task. In `visit_all` there is nothing yet."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare memories by what can be read from them at go."""

    vision: Path
    """Run or checkpoint of `vla train` whose vision all memories get, frozen."""
    tasks: tuple[str, ...] = tuple(ANSWERS)
    """Memory tasks."""
    memories: tuple[str, ...] = tuple(MEMORIES)
    """Memories."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of training."""
    delays: tuple[int, ...] = (16, 128, 1024)
    """Delays of the tests, control steps."""
    distractors: tuple[int, ...] = (0, 8)
    """Distractor events of the tests."""
    train_distractors: int = 4
    """Most distractor events in training, whose number is drawn from 0 on."""
    episodes: int = 1500
    """Episodes of training."""
    test_episodes: int = 200
    """Episodes of each test."""
    steps: int = 1000
    """Updates."""
    batch_size: int = 64
    """Episodes of an update."""
    seed: int = 9000
    """Seed of the test episodes; those of training have the next one."""
    threads: int = 2
    """CPU threads."""
    out: Path
    """Folder of the study."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(
            self, episodes=1, test_episodes=1, steps=1, batch_size=1, seed=0, threads=1,
            train_distractors=0,
        )  # fmt: skip
        harness.check_names("tasks", self.tasks, ANSWERS)
        harness.check_names("memories", self.memories, MEMORIES)
        curve.check_delays(self.delays, self.distractors)


@dataclass(frozen=True)
class Waits:
    """What is seen from the beginning of each episode to go, a row for each decision."""

    cells: np.ndarray
    """Largest features of each cell of the images, f16 [f, v, c, cells]."""
    proprio: np.ndarray
    """Channel positions, f32 [f, s]."""
    step: np.ndarray
    """Control steps since the episode began, f32 [f]."""
    text: np.ndarray
    """Instruction, str [f]."""
    lengths: np.ndarray
    """Decisions of each episode, i64 [e]; the last one is at go."""
    answer: np.ndarray
    """What has to be known then, i64 [e]."""

    def rows(self, episodes: np.ndarray) -> list[np.ndarray]:
        """Return the rows of some episodes."""
        ends = np.cumsum(self.lengths)
        return [np.arange(ends[e] - self.lengths[e], ends[e]) for e in episodes]


def watch(vision: VLAPolicy, task_name: str, config: Any, episodes: int, seed: int) -> Waits:
    """Simulate episodes of a task until the arm comes free."""
    env = vec_env.make(task_name, AT_ONCE, robot=vision.robot, task_config=config)
    world = MujocoWorld(compile_scene(config, vision.robot))
    seen: list[list[tuple[Any, ...]]] = []
    with contextlib.closing(env):
        firsts = range(0, episodes, AT_ONCE)
        for first in track(firsts, f"watching {task_name}", transient=True):
            number = first + np.arange(AT_ONCE)
            wait = wait_for_go(env, seed, number, vision.n_action_steps)
            batch: list[list[tuple[Any, ...]]] = [[] for _ in number]
            for obs, locked in wait.decisions:
                _look(vision, obs, np.flatnonzero(locked), batch)
            _look(vision, env.restore(wait.free), np.arange(AT_ONCE), batch)
            seen += batch
    answers = []
    for index in range(episodes):
        world.reset(seed, index)
        answers.append(ANSWERS[task_name](world.task, world.episode))
    cells, proprio, step, text = zip(
        *(row for part in seen[:episodes] for row in part), strict=True
    )
    return Waits(
        np.stack(cells), np.stack(proprio), np.array(step, np.float32), np.array(text),
        np.array([len(part) for part in seen[:episodes]]), np.array(answers),
    )  # fmt: skip


@torch.no_grad()
def _look(
    vision: VLAPolicy, obs: Observation, rows: np.ndarray, batch: list[list[tuple[Any, ...]]]
) -> None:
    """Append what some rows see to their episodes."""
    part = obs.rows(rows)
    images = torch.as_tensor(part.images)[:, vision.views]
    ids = torch.zeros(len(rows), 1, dtype=torch.int64)
    cells = vision.backbone.frozen_features(images, ids)["cells"].half().numpy()
    steps = np.asarray(part.time_s) * vision.robot.control_hz
    for k, row in enumerate(rows):
        batch[row].append((cells[k], part.proprio[k], steps[k], part.task[k]))


class Recall(nn.Module):
    """A memory and a readout of what it retrieves."""

    def __init__(self, policy: VLAPolicy, answers: np.ndarray) -> None:
        """Build the readout for a policy's memory and the numbers that may be an answer."""
        super().__init__()
        self.policy = policy
        self.register_buffer("answers", torch.as_tensor(answers))
        width = policy.memory.vector_size + policy.memory.width
        self.readout = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, len(answers)))

    def forward(self, waits: Waits, episodes: np.ndarray) -> Tensor:
        """Return the logits of the answers, f32 [b, answers]."""
        policy, rows = self.policy, waits.rows(episodes)
        flat = np.concatenate(rows)
        token_ids = policy.text(tuple(waits.text[flat]), policy.device)
        proprio = policy.padded(policy.normalizer.state(torch.as_tensor(waits.proprio[flat])))
        cells = torch.as_tensor(waits.cells[flat]).float()
        # Feature maps are for acting; what is remembered does not depend on them.
        features = {"cells": cells, "maps": cells}
        tokens = policy.backbone.encode_from(features, proprio, token_ids).tokens
        lengths = [len(part) for part in rows]
        x = pad_sequence(tokens.split(lengths), batch_first=True)
        now = pad_sequence(torch.as_tensor(waits.step[flat]).split(lengths), batch_first=True)
        go, row = torch.tensor(lengths) - 1, torch.arange(len(rows))
        mask = (torch.arange(x.shape[1]) <= go[:, None]).float()
        vector = policy.memory.read_episodes(x, now, mask, row, go).vector
        return self.readout(torch.cat([vector, x[row, go, -1]], 1))


def learn(study: Study, memory: str, seed: int, waits: Waits) -> Recall:
    """Return a memory trained on the answers of the training episodes."""
    texts = tuple(sorted(set(waits.text)))
    policy = build(memory, seed, texts)
    pretrained.load_vision(policy, str(study.vision))
    policy.backbone.requires_grad_(requires_grad=False)
    for part in (policy.backbone.words, policy.backbone.perceive, policy.backbone.think):
        part.requires_grad_(requires_grad=True)
    policy.backbone.place.requires_grad_(requires_grad=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  torch's initialisers know no other source
        module = Recall(policy, np.unique(waits.answer))
    optimizer = Optimizer(OptimizerConfig(), module, study.steps)
    rng = np.random.default_rng(seed)
    wanted = torch.as_tensor(np.searchsorted(module.answers.numpy(), waits.answer))
    module.train()
    for _ in track(range(study.steps), f"learning {memory}", transient=True):
        episodes = rng.choice(len(waits.lengths), study.batch_size)
        loss = nn.functional.cross_entropy(module(waits, episodes), wanted[episodes])
        optimizer.step(loss)
    module.load_state_dict(optimizer.average)
    return module.eval()


@torch.no_grad()
def recalled(module: Recall, waits: Waits) -> int:
    """Return how many answers are right."""
    parts = np.split(np.arange(len(waits.lengths)), range(AT_ONCE, len(waits.lengths), AT_ONCE))
    named = torch.cat([module.answers[module(waits, part).argmax(1)] for part in parts])
    return int((named.numpy() == waits.answer).sum())


def watched(study: Study, vision: VLAPolicy, task: str, cell: tuple[int, int] | None) -> Waits:
    """Return the episodes of a test at a delay with distractors, or of training; from a file, once
    they were simulated.
    """
    config: Any = vec_env.load_task(task)
    seed, count = study.seed, study.test_episodes
    if cell is None:
        config = replace(
            config, delay_steps=(16, 128), distractors=study.train_distractors,
            random_distractors=True,
        )  # fmt: skip
        seed, count = seed + 1, study.episodes
    else:
        config = curve.with_delay(config, *cell)
    name = "train" if cell is None else f"{cell[0]}-{cell[1]}"
    path = study.out / "waits" / f"{task}-{name}.npz"
    if not path.exists():
        found = watch(vision, task, config, count, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_of(path)
        with temporary.open("wb") as file:
            np.savez(file, **vars(found))
        temporary.replace(path)
    with np.load(path) as stored:
        return Waits(**stored)


Cells = dict[tuple[str, str, int], dict[tuple[int, int], int]]
"""Right answers by delay and distractors, by task, memory and seed."""


def rows(study: Study, cells: Cells, task: str) -> Iterator[tuple[str, ...]]:
    """Yield a memory and its recall in every test, all seeds together."""
    tests = list(curve.cells(study.delays, study.distractors))
    for memory in study.memories:
        found = [cells[key] for seed in study.seeds if (key := (task, memory, seed)) in cells]
        if found:
            count = len(found) * study.test_episodes
            yield (
                memory,
                *(harness.share(sum(part[test] for part in found), count) for test in tests),
            )


def scores(study: Study, cells: Cells, chances: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return each memory's normalised recall, the mean over tests: by task, over all tasks, and
    the least and the greatest mean of a seed; the best memory first.
    """
    found: dict[str, np.ndarray] = {}
    for memory in study.memories:
        found[memory] = np.array([
            [
                np.mean([
                    normalised(chances[task], right, study.test_episodes)
                    for right in cells[task, memory, seed].values()
                ])
                if (task, memory, seed) in cells
                else np.nan
                for task in study.tasks
            ]
            for seed in study.seeds
        ])  # fmt: skip
    complete = {name: part[~np.isnan(part).any(1)] for name, part in found.items()}
    complete = {name: part for name, part in complete.items() if len(part)}
    best = sorted(complete, key=lambda name: -complete[name].mean())
    return [
        (
            name, *(f"{score:.2f}" for score in complete[name].mean(0)),
            f"{complete[name].mean():.2f}",
            f"{complete[name].mean(1).min():.2f} to {complete[name].mean(1).max():.2f}",
        )
        for name in best
    ]  # fmt: skip


def main(argv: list[str]) -> int:
    """Run what is missing and print the tables; exit code 1 if a control is above chance."""
    study = harness.read(Study, argv, "training.recall_study")
    runtime.prepare(study.threads)
    console = Console(highlight=False, soft_wrap=True)
    vision = checkpoint.load_vla(study.vision, "the study")[0].eval()
    names = ("train_distractors", "episodes", "test_episodes", "steps", "batch_size", "seed")
    settings = {"vision": str(study.vision), **{name: getattr(study, name) for name in names}}
    results = harness.Results(study.out / "results.json", settings, "cells")
    results.save()  # the waits beside it are of these settings, even if no result is there yet
    tests = list(curve.cells(study.delays, study.distractors))
    for seed in study.seeds:  # a first row of every memory before a second
        for task in study.tasks:
            for memory in study.memories:
                keys = {test: _key(task, memory, seed, *test) for test in tests}
                if all(key in results.cells for key in keys.values()):
                    continue
                waits = watched(study, vision, task, None)
                console.print(f"{task}: {memory}, seed {seed}")
                module = learn(study, memory, seed, waits)
                results.cells[f"{task} chance"] = 1 / len(module.answers)
                for test, key in keys.items():
                    results.cells[key] = recalled(module, watched(study, vision, task, test))
                results.save()
    return report(study, results.cells, console)


def report(study: Study, stored: Mapping[str, Any], console: Console) -> int:
    """Print the tables; return 1 if a control is above chance."""
    tests = list(curve.cells(study.delays, study.distractors))
    cells: Cells = {}
    for task in study.tasks:
        for memory in study.memories:
            for seed in study.seeds:
                keys = {test: _key(task, memory, seed, *test) for test in tests}
                if all(key in stored for key in keys.values()):
                    cells[task, memory, seed] = {test: stored[key] for test, key in keys.items()}
    chances = {task: stored.get(f"{task} chance", np.nan) for task in study.tasks}
    columns = ("memory", *(f"{delay} steps, {events} distractors" for delay, events in tests))
    sound, controls = True, [key for key in cells if key[1] == "none"]
    for task in study.tasks:
        title = f"{task}: what is recalled; guessing gives {chances[task]:.1%}"
        harness.show(harness.table(title, columns, rows(study, cells, task)))
    for task, memory, seed in controls:
        for test, right in cells[task, memory, seed].items():
            if leaks(chances[task], right, study.test_episodes, len(controls) * len(tests)):
                sound = False
                console.print(
                    f"{task}: {harness.share(right, study.test_episodes)} without memory at a "
                    f"delay of {test[0]} with {test[1]} distractors, above guessing: something "
                    "leaks"
                )
    columns = ("memory", *study.tasks, "mean", "seeds")
    harness.show(harness.table("normalised recall", columns, scores(study, cells, chances)))
    return 0 if sound else 1


def _key(task: str, memory: str, seed: int, delay: int, distractors: int) -> str:
    return f"{task} {memory} seed {seed} delay {delay} distractors {distractors}"


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.recall_study:main", sys.argv[1:]))
