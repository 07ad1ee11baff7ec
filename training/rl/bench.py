"""`vla bench rl`: environment steps per second of the whole loop, and where each second goes.

Weights are fresh, so that every episode lasts as long as it may: what they are does not change the
time of a step. One round of practice is followed by its updates, as in `vla train rl`.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from reward_models.label import practice
from training import demos, host, loop
from training.config import EvalConfig
from training.optimiser import Optimiser
from training.rl.config import PracticeConfig, Start
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import check_least


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure practice."""

    out: Path = Path("runs/bench-rl")
    """Folder of what is made up."""
    task: str = "pick_place"
    """What is practised: a task with a recipe."""
    algo: Literal["filtered_bc", "dppo", "ogpo", "steer"] = "filtered_bc"
    """How it learns."""
    episodes: int = 40
    """Episodes of the round."""
    updates: int = 100
    """Updates after it."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, updates=1, threads=1)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one round took."""

    seconds: dict[str, float]
    """By part; together they are the whole."""
    whole: float
    """Seconds of the round and its updates."""
    steps: int
    """Control steps practised."""


def begin(args: BenchArgs) -> Start:
    """Return something to start from: a few demonstrations, fresh weights.

    Raises:
        ValueError: the task has no recipe.
    """
    recipe = registry.load("training.recipes", args.task).recipe()
    place = args.out / args.task
    demos.record_demos(demos.DemosConfig(out=place / "demos", task=recipe.task, episodes=4))
    once = replace(recipe, steps=1, eval=EvalConfig(every=0, final_episodes=0))
    loop.run(once, place / "demos", place / "start", Console(quiet=True))
    critic = practice.make_critic(args.out / "critic")
    return Start(
        policy=place / "start", demos=place / "demos", critic=critic,
        experience=place / "experience",
    )  # fmt: skip


def measure(args: BenchArgs, start: Start) -> Measured:
    """Practise one round and learn from it."""
    run = PracticeConfig(
        task=registry.load("training.recipes", args.task).recipe().task,
        algo=registry.load("training.algos", args.algo).Config(), reward="critic", rounds=1,
        episodes=args.episodes, steps=args.updates, threads=args.threads,
    )  # fmt: skip
    learner = run.algo.start(run, start)
    optimiser = Optimiser(run.optimiser, learner.module, run.steps)
    generator = torch.Generator().manual_seed(run.seed)
    begun = time.perf_counter()
    for _ in range(args.updates):
        learner.update(learner.collect(), optimiser, generator)
    whole = time.perf_counter() - begun
    took = learner.rounds.clock.seconds
    inside = took["step"] + took["infer"] + took["score"]
    seconds = {
        "simulate": took["step"] - took["render"], "render": took["render"],
        "infer": took["infer"], "score": took["score"],
        "keep, write": took["practise"] - inside, "update": whole - took["practise"],
    }  # fmt: skip
    steps = sum(episode.steps for episode in learner.rounds.episodes)
    return Measured(seconds=seconds, whole=whole, steps=steps)


def sentence(args: BenchArgs, found: Measured) -> str:
    """Return the whole in one line."""
    return (
        f"{args.task}, {args.algo}: {found.steps} control steps and {args.updates} updates in "
        f"{found.whole:.1f} s, {found.steps / found.whole:.0f} steps/s of the whole loop"
    )


def table(found: Measured) -> Table:
    """Return where each second went."""
    sheet = Table()
    for column in ("part", "seconds", "share"):
        sheet.add_column(column, justify="left" if column == "part" else "right")
    for part, seconds in found.seconds.items():
        sheet.add_row(part, f"{seconds:.2f}", f"{seconds / found.whole:.1%}")
    return sheet


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench rl")
    host.prepare(args.threads)
    found = measure(args, begin(args))
    console = Console(highlight=False, soft_wrap=True)
    console.print(sentence(args, found))
    console.print(table(found))
    return 0
