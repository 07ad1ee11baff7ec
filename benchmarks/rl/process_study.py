"""The study of online RL in several processes: speed, slow reward models, losses by kills.

`python -m benchmarks.rl.process_study --out runs/runtime`

Weights and reward model are random: they do not change the time of a step. The task is `cue_colour`
with delays sampled log-uniformly over a factor of forty, so that its episodes differ tenfold.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.reward_models import synthetic_dataset
from training.algos import filtered_bc
from training.core import loop
from training.core import runtime as host
from training.core.config import EvalConfig
from training.core.optimizer import Optimizer
from training.data import demos
from training.rl.config import OnlineRLConfig, RuntimeConfig, Start
from training.rl.experience import episode_store
from training.rl.experience.episode import Episode
from training.rl.processes import incremental_store, scoring
from training.rl.processes.actor_pool import ActorPool
from training.rl.processes.supervised_process import Job
from training.rl.rollout.reward_source import RewardSource
from vla import checkpoint
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.contracts.protocols import RewardModel
from vla.contracts.types import Example, Frames, Progress
from vla.utils import arguments

SLOW_S = 0.5
"""Additional time of every call of the slow reward model."""
DELAYS = (16, 640)
"""Shortest and longest delay of the task, in control steps."""
INTERVAL_S = 10.0
"""Longest time between two kills."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Measure online RL in several processes against one."""

    out: Path = Path("runs/runtime")
    """Folder of the study; earlier runs in it are deleted."""
    parts: tuple[Literal["throughput", "reward_model", "kills"], ...] = (
        "throughput",
        "reward_model",
        "kills",
    )
    """Parts to measure."""
    n_iterations: int = 5
    """Iterations of each run; the time from the second to the last is reported."""
    episodes: int = 16
    """Episodes per iteration."""
    updates: int = 30
    """Updates after each iteration, about as long as its rollouts take."""
    threads: tuple[int, ...] = (1, 2)
    """Threads of the runs in one process; processes have one each."""
    kills: int = 20
    """Number of kills."""
    seed: int = 0
    """Seed of the moments of the kills."""

    def __post_init__(self) -> None:
        validate_min(self, n_iterations=4, episodes=2, updates=1, kills=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Speed of a run after its first iterations."""

    seconds: float
    """Time from the end of the second iteration's rollouts to that of the last."""
    episodes: int
    """Episodes taken in that time."""
    steps: int
    """Their control steps."""
    updates: int
    """Updates in that time."""
    lengths: tuple[int, int]
    """Control steps of the shortest and the longest episode of the run."""


@dataclass
class Kills:
    """Results of runs with kills."""

    killed: dict[str, int] = field(default_factory=dict)
    """Kills by name of the process."""
    runs: int = 0
    """Runs; each continued to its end."""
    finished: int = 0
    """Episodes that were finished at a kill, in an unfinished iteration."""
    errors: list[str] = field(default_factory=list)
    """Errors, one sentence each."""


def begin(out: Path) -> Start:
    """Return a start: a few demonstrations, random weights and a random reward model."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    task = replace(recipe.task, delay_steps=DELAYS)
    demos.record_demos(demos.DemosConfig(out=out / "demos", task=task, episodes=4))
    policy = replace(recipe.policy, memory=registry.load("vla.memory", "none").Config())
    once = EvalConfig(every=0, final_episodes=0)
    imitation = replace(recipe, task=task, policy=policy, steps=1, eval=once)
    loop.run(imitation, out / "demos", out / "start", Console(quiet=True))
    return Start(
        policy=out / "start", dataset=out / "demos", experience=out / "experience",
        reward_model=synthetic_dataset.make_reward_model(out / "reward_model"),
    )  # fmt: skip


def configuration(args: StudyArgs, threads: int, runtime: RuntimeConfig) -> OnlineRLConfig:
    """Return a run of the study."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    return OnlineRLConfig(
        task=replace(recipe.task, delay_steps=DELAYS), algo=filtered_bc.Config(), reward="learned",
        n_iterations=args.n_iterations, episodes_per_iteration=args.episodes,
        num_envs=args.episodes, steps=args.n_iterations * args.updates, threads=threads,
        runtime=runtime,
    )  # fmt: skip


def run_study(
    config: OnlineRLConfig, start: Start, meet: Callable[[Any], None] = lambda learner: None
) -> tuple[Pace, Any]:
    """Run online RL; return its speed and the learner.

    Args:
        config: The run.
        start: The start; experience there is deleted.
        meet: Called with the learner before it begins.
    """
    shutil.rmtree(start.experience, ignore_errors=True)
    host.prepare(config.threads)
    learner = config.algo.start(config, start)
    optimizer = Optimizer(config.optimizer, learner.module, config.steps)
    generator = torch.Generator().manual_seed(config.seed)
    meet(learner)
    taken: list[float] = []
    for _ in range(config.steps):
        before = learner.runner.iteration
        batch = learner.collect()
        if learner.runner.iteration > before:
            taken.append(time.perf_counter())
        learner.update(batch, optimizer, generator)
    iterations, lengths = config.n_iterations - 2, [e.steps for e in learner.runner.episodes]
    pace = Pace(
        seconds=taken[-1] - taken[1], episodes=iterations * config.episodes_per_iteration,
        steps=sum(lengths[2 * config.episodes_per_iteration :]),
        updates=iterations * config.steps // config.n_iterations,
        lengths=(min(lengths), max(lengths)),
    )  # fmt: skip
    return pace, learner


# --- throughput ----------------------------------------------------------------------------------


def throughput(args: StudyArgs, start: Start) -> dict[str, Pace]:
    """Return the speed of the same work in one process and in several."""
    distributed = RuntimeConfig(distributed=True, max_policy_lag=1)
    runs = {
        f"one process, threads: {count}": configuration(args, count, RuntimeConfig())
        for count in args.threads
    }
    runs["processes, lag 1"] = configuration(args, 1, distributed)
    return {name: run_study(config, start)[0] for name, config in runs.items()}


# --- a slow reward model -------------------------------------------------------------------------


class Slow:
    """A slow reward model; satisfies `vla.contracts.protocols.RewardModel`."""

    def __init__(self, scorer: RewardModel) -> None:
        self.scorer, self.start, self.step = scorer, scorer.start, scorer.step

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Score episodes after a pause."""
        time.sleep(SLOW_S)
        return self.scorer.score(frames, task, example)


def score_slowly(job: Job, heartbeat: Callable[[], None]) -> None:
    """Do the same as `scoring.work` with a slow reward model."""
    host.prepare(job.config.threads)
    source = RewardSource(job.config, job.start, checkpoint.load(job.start.policy)[0].robot)
    assert source.scorer is not None
    source.scorer = Slow(source.scorer)
    scoring.serve(job, source, heartbeat)


def slowed(args: StudyArgs, start: Start) -> dict[str, Pace]:
    """Return the speed with few updates, with a reward model and with a slow one."""
    distributed = RuntimeConfig(distributed=True, max_policy_lag=1)
    config = configuration(replace(args, updates=2), 1, distributed)
    paces = {}
    for name, work in (
        ("reward_model", scoring.work),
        (f"reward model + {SLOW_S} s", score_slowly),
    ):

        def meet(learner: Any, work: Any = work) -> None:
            source = learner.runner.reward_source
            learner.runner.actor_pool = ActorPool(config, start, learner.policy, source, score=work)

        paces[name], _ = run_study(config, start, meet)
    return paces


# --- kills ---------------------------------------------------------------------------------------


def kills(args: StudyArgs, start: Start) -> Kills:
    """Kill actor and scorer at random moments, in as many runs as needed; return the counts."""
    counts, rng = Kills(), np.random.default_rng(args.seed)
    while sum(counts.killed.values()) < args.kills:
        config = configuration(args, 1, RuntimeConfig(distributed=True, max_policy_lag=1))
        killer = Killer(args.kills, rng, counts)
        try:
            _, learner = run_study(config, start, killer.meet)
        finally:
            killer.over.set()
            killer.join()
        counts.runs += 1
        counts.errors += check(config, start, killer.finished, learner)
    return counts


class Killer(threading.Thread):
    """Kills processes of a learner until its end or until there were enough kills."""

    def __init__(self, count: int, rng: np.random.Generator, counts: Kills) -> None:
        super().__init__(daemon=True)
        self.count, self.rng, self.counts = count, rng, counts
        self.over = threading.Event()
        self.finished: dict[tuple[int, int], int] = {}

    def meet(self, learner: Any) -> None:
        """Start to kill the processes of this learner."""
        runner = learner.runner
        self.actor_pool = runner.actor_pool = ActorPool(
            runner.config, runner.start, learner.policy, runner.reward_source
        )
        self.start()

    def run(self) -> None:
        """Kill at random moments and record the episodes that were finished."""
        while sum(self.counts.killed.values()) < self.count:
            if self.over.wait(self.rng.uniform(0, INTERVAL_S)):
                return
            member = self.actor_pool.processes[self.rng.integers(len(self.actor_pool.processes))]
            if member.process.pid is None or not member.process.is_alive():
                continue
            self._remember()
            os.kill(member.process.pid, signal.SIGKILL)
            self.counts.killed[member.name] = self.counts.killed.get(member.name, 0) + 1

    def _remember(self) -> None:
        folder = self.actor_pool.folder
        for number in range(self.actor_pool.config.n_iterations):
            name = episode_store.iteration_name(number)
            for k in incremental_store.progress(folder, name)[0] - {
                k for n, k in self.finished if n == number
            }:
                with contextlib.suppress(ValueError):  # the learner has just taken this iteration
                    self.finished[number, k] = checksum(
                        incremental_store.read_episode(folder, name, k)
                    )
                    self.counts.finished += 1


def check(
    config: OnlineRLConfig, start: Start, finished: dict[tuple[int, int], int], learner: Any
) -> list[str]:
    """Return the episodes that a run with kills lost, doubled or did not score, as sentences."""
    errors = []
    for number in range(config.n_iterations):
        episodes = episode_store.read_iteration(
            start.experience, episode_store.iteration_name(number)
        )
        if [e.number for e in episodes] != list(range(config.episodes_per_iteration)):
            errors.append(f"iteration {number} has episodes {[e.number for e in episodes]}")
        for e in episodes:
            if finished.get((number, e.number), checksum(e)) != checksum(e):
                errors.append(f"episode {e.number} of iteration {number} was collected again")
            if not config.oldest_version(number) <= e.version <= config.first_update(number):
                errors.append(f"episode {e.number} of iteration {number} has version {e.version}")
    if len(learner.runner.rewards) != config.n_iterations * config.episodes_per_iteration:
        errors.append(f"{len(learner.runner.rewards)} episodes were scored")
    return errors


def checksum(episode: Episode) -> int:
    """Return a number that differs between different episodes."""
    return hash((episode.images.tobytes(), episode.actions.tobytes(), episode.version))


# --- output ------------------------------------------------------------------------------------


def table(title: str, paces: dict[str, Pace], baselines: int) -> Table:
    """Return one row per run; the last column is relative to the best of the first `baselines`."""
    best = max(pace.steps / pace.seconds for pace in list(paces.values())[:baselines])
    rows = []
    for name, pace in paces.items():
        rates = [n / pace.seconds for n in (pace.episodes, pace.steps, pace.updates)]
        rows.append((name, *(f"{rate:.2f}" for rate in rates), f"{rates[1] / best:.2f}"))
    columns = ("run", "episodes/s", "control steps/s", "updates/s", "ratio")
    return harness.table(title, columns, rows)


def main(argv: list[str]) -> int:
    """Run the study; exit code 1 if kills lost something."""
    args = arguments.read(StudyArgs, argv, "python -m benchmarks.rl.process_study")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console(highlight=False, soft_wrap=True)
    start = begin(args.out)
    if "throughput" in args.parts:
        paces = throughput(args, start)
        low, high = next(iter(paces.values())).lengths
        console.print(table(f"episodes of {low} to {high} control steps", paces, len(args.threads)))
    if "reward_model" in args.parts:
        console.print(table("a slow reward model", slowed(args, start), 1))
    if "kills" not in args.parts:
        return 0
    result = kills(args, start)
    killed = ", ".join(f"{name} {count}" for name, count in sorted(result.killed.items()))
    console.print(
        f"killed in {result.runs} runs of {args.n_iterations * args.episodes} episodes: {killed}; "
        f"{result.finished} episodes were finished and not yet taken at a kill; lost, double, "
        f"collected again or not scored: {len(result.errors)}"
    )
    for sentence in result.errors:
        console.print(sentence)
    return 1 if result.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
