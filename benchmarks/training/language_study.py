"""Does a policy do what it is told? Success on `tabletop` by wording, composition and instruction.

Every cell has new layouts. The controls: a blank instruction, and the same scenes under all
instructions, where the instruction alone decides what happens.

`python -m benchmarks.training.language_study runs/a/checkpoint runs/b/checkpoint`
"""

import collections
import dataclasses
import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console

from benchmarks import harness
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.tasks import _language, tabletop
from training.core import runtime
from training.evaluation.evaluate import evaluate
from vla import cli
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Array, Observation, PolicyState, Prefix
from vla.runtime import policy_loader

SPLITS = {
    "instructions of training": tabletop.Config(),
    "held-out wordings": tabletop.Config(wordings="held_out"),
    "held-out compositions": tabletop.Config(compositions="held_out"),
    "two unknown things in the scene": tabletop.Config(distractors=2),
}
BLANK = "blank instruction"
GOALS = _language.goals(len(tabletop.THINGS))


@dataclass(frozen=True, kw_only=True)
class Study:
    """Measure whether a policy does what it is told."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Checkpoints or exported policies; several seeds are pooled."""
    out: Path = Path("runs/language")
    """Folder of language.json; the same command resumes it."""
    episodes: int = 200
    """Episodes of each policy and split."""
    scenes: int = 10
    """Scenes that each policy meets under every instruction; 0 for none."""
    seed: int = 4000
    """Seed of the episodes."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, scenes=0, seed=0, threads=1)
        if not self.policies:
            raise ValueError("policies: got none, expected at least one checkpoint")


class Blanked:
    """A policy that is told nothing; satisfies `ArmPolicy`."""

    def __init__(self, policy: ArmPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """Act without the instruction."""
        silent = dataclasses.replace(obs, task=("",) * len(obs.task))
        return self._policy.act(silent, state, noise, prefix)


def measure(policy: ArmPolicy, config: tabletop.Config, episodes: int, seed: int) -> dict[str, Any]:
    """Return what a policy does in episodes of one configuration, as JSON types."""
    result = evaluate(policy, config, episodes=episodes, seed=seed, quiet=False)
    return {
        "success": result.success, "goals": result.goals, "achieved": result.achieved,
        "things": things(config, policy.robot, episodes, seed),
    }  # fmt: skip


def reaches(policy: ArmPolicy, scenes: int, seed: int, goal: int) -> list[bool]:
    """Return in which scenes a policy reaches a goal; the scenes do not depend on the goal."""
    config = tabletop.Config(goals=(goal,), compositions="all")
    return evaluate(policy, config, episodes=scenes, seed=seed).success


def things(config: tabletop.Config, robot: RobotSpec, episodes: int, seed: int) -> list[str]:
    """Return colour and shape of the thing that each episode's instruction is about."""
    world = MujocoWorld(compile_scene(config, robot), vary=False)
    names = []
    for index in range(episodes):
        world.reset(seed, index)
        words = world.instruction.split()
        first = next(i for i, word in enumerate(words) if word in _language.COLOURS)
        shape = next(s for s, nouns in _language.NOUNS.items() if words[first + 1] in nouns)
        names.append(f"{words[first]} {shape}")
    return names


def act_of(goal: int, things: int) -> str:
    """Return the act of a goal's index in a scene of some things; "nothing" for -1."""
    return "nothing" if goal < 0 else _language.goals(things)[goal].act


def wrong_thing(cell: dict[str, Any], things: int) -> int:
    """Return the episodes in which something was done with another thing than the one named."""
    goals = _language.goals(things)
    pairs = zip(cell["goals"], cell["achieved"], strict=True)
    return sum(done >= 0 and goals[done].thing != goals[asked].thing for asked, done in pairs)


def rows_of_splits(cells: dict[str, list[dict[str, Any]]]) -> Iterable[tuple[str, ...]]:
    """Yield split, success, share of episodes with another thing, episodes."""
    for name, parts in cells.items():
        count = len(tabletop.THINGS) - SPLITS.get(name, tabletop.Config()).distractors
        right, total = harness.pooled(parts)
        wrong = sum(wrong_thing(part, count) for part in parts)
        yield name, harness.share(right, total), harness.share(wrong, total), str(total)


def by_instruction(parts: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return (act and thing, successes, episodes), the worst first."""
    table: collections.Counter[str] = collections.Counter()
    right: collections.Counter[str] = collections.Counter()
    for part in parts:
        for ok, goal, thing in zip(part["success"], part["goals"], part["things"], strict=True):
            name = f"{GOALS[goal].act}, {thing}"
            table[name] += 1
            right[name] += ok
    rows = [(name, right[name], count) for name, count in table.items()]
    return sorted(rows, key=lambda row: (row[1] / row[2], row[0]))


def confusion(parts: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each act asked for: episodes in which each act was done."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for part in parts:
        for asked, done in zip(part["goals"], part["achieved"], strict=True):
            counts[act_of(asked, len(tabletop.THINGS)), act_of(done, len(tabletop.THINGS))] += 1
    columns = (*_language.ACTS, "nothing")
    return [(act, *(str(counts[act, done] or "") for done in columns)) for act in _language.ACTS]


def swapped(cells: list[list[list[bool]]]) -> tuple[int, int]:
    """Return in how many pairs of instructions the second is done where the first is.

    Args:
        cells: For every policy, goal and scene whether the goal was reached when asked for.
    """
    done = total = 0
    for policy in cells:
        for scene in np.asarray(policy).T:
            right = int(scene.sum())
            done += right * (right - 1)
            total += right * (len(scene) - 1)
    return done, total


def main(argv: list[str]) -> int:
    """Print the tables."""
    args = harness.read(Study, argv, "training.language_study")
    runtime.prepare(args.threads)
    console = Console(highlight=False, soft_wrap=True)
    results = harness.Results(
        args.out / "language.json",
        {"episodes": args.episodes, "scenes": args.scenes, "seed": args.seed}, "cells",
    )  # fmt: skip
    cells: dict[str, list[dict[str, Any]]] = {name: [] for name in (*SPLITS, BLANK)}
    same: list[list[list[bool]]] = []
    for path in args.policies:
        policy = policy_loader.open_policy(path, args.threads).policy
        for name in cells:
            told = policy if name != BLANK else Blanked(policy)
            config = SPLITS.get(name, tabletop.Config())
            console.print(f"{path}: {name}")
            measured = functools.partial(measure, told, config, args.episodes, args.seed)
            cells[name].append(results.measure(f"{path} {name}", measured))
        if args.scenes:
            console.print(f"{path}: the same {args.scenes} scenes under every instruction")
            reached = functools.partial(reaches, policy, args.scenes, args.seed + 1)
            same.append(
                [
                    results.measure(f"{path} goal {goal}", functools.partial(reached, goal))
                    for goal in range(len(GOALS))
                ]
            )
    report(cells, same)
    return 0


def report(cells: dict[str, list[dict[str, Any]]], same: list[list[list[bool]]]) -> None:
    """Print success by split, by instruction, and what was done in place of what was asked."""
    columns = ("instruction", "success", "another thing", "episodes")
    harness.show(harness.table("", columns, rows_of_splits(cells)))
    trained = cells["instructions of training"]
    rows = by_instruction(trained)
    worst = [(name, f"{k} of {n}", harness.interval(k, n, 0)) for name, k, n in rows]
    title = f"{len(rows)} instructions, worst first"
    harness.show(harness.table(title, ("instruction", "success", "interval"), worst[:8]))
    acts = ("asked for", *_language.ACTS, "nothing")
    harness.show(harness.table("what was done", acts, confusion(trained)))
    if same:
        right = np.asarray(same)
        goals = right.mean((0, 2))
        pairs = swapped(same)
        harness.show(harness.table(
            f"the same {right.shape[2]} scenes under all {len(GOALS)} instructions",
            ("quantity", "value"),
            [
                ("success", harness.share(int(right.sum()), right.size)),
                ("worst goal", f"{goals.min():.1%}"),
                ("does the other thing when told the other", harness.share(*pairs)),
            ],
        ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.language_study:main", sys.argv[1:]))
