"""`vla bench rl`: environment steps per second of the whole loop, and where each second goes.

Weights are random, so that every episode lasts until its limit; they do not change the time of a
step. One iteration is followed by its updates, as in `vla train rl`.
"""

import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.reward_models import synthetic_dataset
from sim import vec_env
from training.core import loop, runtime
from training.core.config import EvalConfig
from training.core.optimizer import Optimizer
from training.data import demos
from training.rl.config import OnlineRLConfig, Start
from training.rl.rollout.reward_source import RewardSource
from training.rl.runners.runner import OnlineRunner
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.policies.vla import VLAPolicy
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure online RL."""

    out: Path = Path("runs/bench-rl")
    """Folder of the run and its synthetic reward model."""
    task: str = "pick_place"
    """Task with a recipe."""
    algo: str = "filtered_bc"
    """Algorithm of online RL in `training/algos`."""
    episodes: int = 40
    """Episodes of the iteration."""
    updates: int = 100
    """Updates after it."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range and unknown algorithms."""
        validate_min(self, episodes=1, updates=1, threads=1)
        registry.check("training.algos", self.algo)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Time of one iteration."""

    seconds: dict[str, float]
    """By part; together they are the whole."""
    whole: float
    """Seconds of the iteration and its updates."""
    steps: int
    """Control steps of the rollouts."""


def begin(args: BenchArgs) -> Start:
    """Return a start: a few demonstrations and random weights.

    Raises:
        ValueError: the task has no recipe.
    """
    recipe = registry.load("training.recipes", args.task).recipe()
    place = args.out / args.task
    demos.record_demos(demos.DemosConfig(out=place / "demos", task=recipe.task, episodes=4))
    once = replace(recipe, steps=1, eval=EvalConfig(every=0, final_episodes=0))
    loop.run(once, place / "demos", place / "start", Console(quiet=True))
    reward_model = synthetic_dataset.make_reward_model(args.out / "reward_model")
    return Start(
        policy=place / "start", dataset=place / "demos", reward_model=reward_model,
        experience=place / "experience",
    )  # fmt: skip


class Stopwatch:
    """Counts the seconds of an iteration's rollouts by part, while it is open as a context."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._make_env = vec_env.make
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> "Stopwatch":
        methods = (
            ("collect", OnlineRunner, "collect"), ("score", RewardSource, "score"),
            ("infer", VLAPolicy, "sample"),
        )  # fmt: skip
        for part, owner, name in methods:
            method = self._counted(part, getattr(owner, name))
            self._patches.enter_context(mock.patch.object(owner, name, method))
        self._patches.enter_context(mock.patch.object(vec_env, "make", self._counted_env))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - begin_s

        return call

    def _counted_env(self, *args: Any, **kwargs: Any) -> Any:
        env: Any = self._make_env(*args, **kwargs)
        close = env.close

        def close_counted() -> None:
            self.seconds["render"] += env.render_time_s
            close()

        env.begin = self._counted("step", env.begin)
        env.step_chunk = self._counted("step", env.step_chunk)
        env.close = close_counted
        return env


def measure(args: BenchArgs, start: Start) -> Measured:
    """Collect one iteration and learn from it."""
    run = OnlineRLConfig(
        task=registry.load("training.recipes", args.task).recipe().task,
        algo=registry.load("training.algos", args.algo).Config(), reward="learned", n_iterations=1,
        episodes_per_iteration=args.episodes, steps=args.updates, threads=args.threads,
    )  # fmt: skip
    learner = run.algo.start(run, start)
    optimizer = Optimizer(run.optimizer, learner.module, run.steps)
    generator = torch.Generator().manual_seed(run.seed)
    begin_s = time.perf_counter()
    with Stopwatch() as clock:
        for _ in range(args.updates):
            learner.update(learner.collect(), optimizer, generator)
    whole = time.perf_counter() - begin_s
    took = clock.seconds
    timed = took["step"] + took["infer"] + took["score"]
    seconds = {
        "simulate": took["step"] - took["render"], "render": took["render"],
        "infer": took["infer"], "score": took["score"],
        "store, write": took["collect"] - timed, "update": whole - took["collect"],
    }  # fmt: skip
    steps = sum(episode.steps for episode in learner.runner.episodes)
    return Measured(seconds=seconds, whole=whole, steps=steps)


def sentence(args: BenchArgs, measured: Measured) -> str:
    """Return the result in one sentence."""
    return (
        f"{args.task}, {args.algo}: {measured.steps} control steps and {args.updates} updates in "
        f"{measured.whole:.1f} s, {measured.steps / measured.whole:.0f} steps/s of the whole loop"
    )


def table(measured: Measured) -> Table:
    """Return where each second went."""
    rows = [
        (part, f"{seconds:.2f}", f"{seconds / measured.whole:.1%}")
        for part, seconds in measured.seconds.items()
    ]
    return harness.table("", ("part", "seconds", "share"), rows)


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench rl")
    runtime.prepare(args.threads)
    measured = measure(args, begin(args))
    console = Console(highlight=False, soft_wrap=True)
    console.print(sentence(args, measured))
    console.print(table(measured))
    return 0
