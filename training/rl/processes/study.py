"""The study of practice in processes: what it gains, what a slow critic costs, what kills lose.

`python -m training.rl.processes.study --out runs/runtime`

Weights and critic are fresh: they do not change the time of a step. The task is `cue_colour` with
delays whose lengths differ fortyfold, drawn log-uniformly, so that its episodes differ tenfold.
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

from reward_models.label import practice
from training import demos, host, loop
from training.algos import filtered_bc
from training.config import EvalConfig
from training.optimiser import Optimiser
from training.rl import store
from training.rl.config import PracticeConfig, RuntimeConfig, Start
from training.rl.experience import Episode
from training.rl.judge import Judge
from training.rl.processes import parts, scoring
from training.rl.processes.member import Job
from training.rl.processes.team import Team
from vla import arguments, checkpoint
from vla.contracts import registry
from vla.contracts.config import check_least
from vla.contracts.protocols import RewardModel
from vla.contracts.types import Example, Frames, Progress

SLOW_S = 0.5
"""What the slow critic takes longer for every call."""
DELAYS = (16, 640)
"""Shortest and longest delay of the task, in control steps."""
APART_S = 10.0
"""Longest time between two kills."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Measure practice in processes beside practice in one."""

    out: Path = Path("runs/runtime")
    """Folder of everything; its runs are made anew."""
    parts: tuple[Literal["throughput", "critic", "kills"], ...] = ("throughput", "critic", "kills")
    """What to measure."""
    rounds: int = 5
    """Rounds of each run; the time from the first to the last but one is told."""
    episodes: int = 16
    """Episodes per round."""
    updates: int = 30
    """Updates after each round, about as long as a round takes."""
    threads: tuple[int, ...] = (1, 2)
    """Threads of the runs in one process; processes have one each."""
    kills: int = 20
    """How often a process is killed."""
    seed: int = 0
    """Of the moments of the kills."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, rounds=4, episodes=2, updates=1, kills=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a run went, once it was under way."""

    seconds: float
    """From when the second round was there to when the last was."""
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
    """What runs that were disturbed came to."""

    killed: dict[str, int] = field(default_factory=dict)
    """By name of the process."""
    runs: int = 0
    """Runs it took; each went on to its end."""
    finished: int = 0
    """Episodes that were finished, and in no whole round yet, at some kill."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it should be, one sentence each."""


def begin(out: Path) -> Start:
    """Return something to start from: a few demonstrations, fresh weights and a fresh critic."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    task = replace(recipe.task, delay_steps=DELAYS)
    demos.record_demos(demos.DemosConfig(out=out / "demos", task=task, episodes=4))
    policy = replace(recipe.policy, memory=registry.load("vla.memory", "none").Config())
    once = EvalConfig(every=0, final_episodes=0)
    one = replace(recipe, task=task, policy=policy, steps=1, eval=once)
    loop.run(one, out / "demos", out / "start", Console(quiet=True))
    return Start(
        policy=out / "start", demos=out / "demos", critic=practice.make_critic(out / "critic"),
        experience=out / "experience",
    )  # fmt: skip


def configuration(args: StudyArgs, threads: int, runtime: RuntimeConfig) -> PracticeConfig:
    """Return a run of practice of the study."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    return PracticeConfig(
        task=replace(recipe.task, delay_steps=DELAYS), algo=filtered_bc.Config(), reward="critic",
        rounds=args.rounds, episodes=args.episodes, environments=args.episodes,
        steps=args.rounds * args.updates, threads=threads, runtime=runtime,
    )  # fmt: skip


def practise(
    config: PracticeConfig, start: Start, meet: Callable[[Any], None] = lambda learner: None
) -> tuple[Pace, Any]:
    """Run practice afresh; return how fast it went, and the learner.

    Args:
        config: The run.
        start: What it starts from; experience there is deleted.
        meet: Given the learner before it begins.
    """
    shutil.rmtree(start.experience, ignore_errors=True)
    host.prepare(config.threads)
    learner = config.algo.start(config, start)
    optimiser = Optimiser(config.optimiser, learner.module, config.steps)
    generator = torch.Generator().manual_seed(config.seed)
    meet(learner)
    taken: list[float] = []
    for _ in range(config.steps):
        before = learner.rounds.count
        batch = learner.collect()
        if learner.rounds.count > before:
            taken.append(time.perf_counter())
        learner.update(batch, optimiser, generator)
    rounds, lengths = config.rounds - 2, [e.steps for e in learner.rounds.episodes]
    pace = Pace(
        seconds=taken[-1] - taken[1], episodes=rounds * config.episodes,
        steps=sum(lengths[2 * config.episodes :]), updates=rounds * config.steps // config.rounds,
        lengths=(min(lengths), max(lengths)),
    )  # fmt: skip
    return pace, learner


# --- throughput ----------------------------------------------------------------------------------


def throughput(args: StudyArgs, start: Start) -> dict[str, Pace]:
    """Return the pace of the same work in one process and in several."""
    apart = RuntimeConfig(processes=True, lag=1)
    runs = {
        f"one process, threads: {count}": configuration(args, count, RuntimeConfig())
        for count in args.threads
    }
    runs["processes, lag 1"] = configuration(args, 1, apart)
    return {name: practise(config, start)[0] for name, config in runs.items()}


# --- a slow critic -------------------------------------------------------------------------------


class Slow:
    """A critic that takes its time; satisfies `vla.contracts.protocols.RewardModel`."""

    def __init__(self, scorer: RewardModel) -> None:
        self.scorer, self.start, self.step = scorer, scorer.start, scorer.step

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Judge episodes, later."""
        time.sleep(SLOW_S)
        return self.scorer.score(frames, task, example)


def score_slowly(job: Job, alive: Callable[[], None]) -> None:
    """Do what `scoring.work` does with a slow critic."""
    host.prepare(job.config.threads)
    judge = Judge(job.config, job.start, checkpoint.load(job.start.policy)[0].robot)
    assert judge.scorer is not None
    judge.scorer = Slow(judge.scorer)
    scoring.serve(job, judge, alive)


def slowed(args: StudyArgs, start: Start) -> dict[str, Pace]:
    """Return the pace of practice, with next to no updates, beside a critic and a slow one."""
    apart = RuntimeConfig(processes=True, lag=1)
    config = configuration(replace(args, updates=2), 1, apart)
    found = {}
    for name, work in (("critic", scoring.work), (f"critic + {SLOW_S} s", score_slowly)):

        def meet(learner: Any, work: Any = work) -> None:
            rounds = learner.rounds
            rounds.team = Team(config, start, learner.policy, rounds.judge, score=work)

        found[name], _ = practise(config, start, meet)
    return found


# --- kills ---------------------------------------------------------------------------------------


def kills(args: StudyArgs, start: Start) -> Kills:
    """Kill actor and scorer at random moments, in as many runs as it takes; return what came."""
    found, rng = Kills(), np.random.default_rng(args.seed)
    while sum(found.killed.values()) < args.kills:
        config = configuration(args, 1, RuntimeConfig(processes=True, lag=1))
        killer = Killer(args.kills, rng, found)
        try:
            _, learner = practise(config, start, killer.meet)
        finally:
            killer.over.set()
            killer.join()
        found.runs += 1
        found.wrong += wrong(config, start, killer.finished, learner)
    return found


class Killer(threading.Thread):
    """Kills what works for a learner, until it is over or there were enough kills."""

    def __init__(self, count: int, rng: np.random.Generator, found: Kills) -> None:
        super().__init__(daemon=True)
        self.count, self.rng, self.found = count, rng, found
        self.over = threading.Event()
        self.finished: dict[tuple[int, int], int] = {}

    def meet(self, learner: Any) -> None:
        """Begin with the processes of this learner."""
        rounds = learner.rounds
        self.team = rounds.team = Team(rounds.config, rounds.start, learner.policy, rounds.judge)
        self.start()

    def run(self) -> None:
        """Kill, now and then, and remember what was finished by then."""
        while sum(self.found.killed.values()) < self.count:
            if self.over.wait(self.rng.uniform(0, APART_S)):
                return
            member = self.team.members[self.rng.integers(len(self.team.members))]
            if member.process.pid is None or not member.process.is_alive():
                continue
            self._remember()
            os.kill(member.process.pid, signal.SIGKILL)
            self.found.killed[member.name] = self.found.killed.get(member.name, 0) + 1

    def _remember(self) -> None:
        folder = self.team.folder
        for number in range(self.team.config.rounds):
            name = store.name_of(number)
            for k in parts.there(folder, name)[0] - {k for n, k in self.finished if n == number}:
                with contextlib.suppress(ValueError):  # the learner has just taken this round
                    self.finished[number, k] = checksum(parts.read(folder, name, k))
                    self.found.finished += 1


def wrong(
    config: PracticeConfig, start: Start, finished: dict[tuple[int, int], int], learner: Any
) -> list[str]:
    """Return what a run that was disturbed lost, or has twice, or has not judged."""
    said = []
    for number in range(config.rounds):
        episodes = store.read_round(start.experience, store.name_of(number))
        if [e.number for e in episodes] != list(range(config.episodes)):
            said.append(f"round {number} has episodes {[e.number for e in episodes]}")
        for e in episodes:
            if finished.get((number, e.number), checksum(e)) != checksum(e):
                said.append(f"episode {e.number} of round {number} was practised anew")
            if not config.oldest(number) <= e.version <= config.begins(number):
                said.append(f"episode {e.number} of round {number} has version {e.version}")
    if len(learner.rounds.worth) != config.rounds * config.episodes:
        said.append(f"{len(learner.rounds.worth)} episodes were judged")
    return said


def checksum(episode: Episode) -> int:
    """Return a number that differs where what was seen or done does."""
    return hash((episode.images.tobytes(), episode.actions.tobytes(), episode.version))


# --- what is printed -----------------------------------------------------------------------------


def table(title: str, found: dict[str, Pace], baselines: int) -> Table:
    """Return one line for each run; the last column is measured by the best of the first ones."""
    sheet = Table(title=title)
    for column in ("run", "episodes/s", "control steps/s", "updates/s", "ratio"):
        sheet.add_column(column, justify="left" if column == "run" else "right")
    best = max(pace.steps / pace.seconds for pace in list(found.values())[:baselines])
    for name, pace in found.items():
        rates = [n / pace.seconds for n in (pace.episodes, pace.steps, pace.updates)]
        sheet.add_row(name, *(f"{rate:.2f}" for rate in rates), f"{rates[1] / best:.2f}")
    return sheet


def main(argv: list[str]) -> int:
    """Run the study; exit code 1 if kills lost something."""
    args = arguments.read(StudyArgs, argv, "python -m training.rl.processes.study")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console(highlight=False, soft_wrap=True)
    start = begin(args.out)
    if "throughput" in args.parts:
        found = throughput(args, start)
        low, high = next(iter(found.values())).lengths
        console.print(table(f"episodes of {low} to {high} control steps", found, len(args.threads)))
    if "critic" in args.parts:
        console.print(table("a slow critic", slowed(args, start), 1))
    if "kills" not in args.parts:
        return 0
    came = kills(args, start)
    told = ", ".join(f"{name} {count}" for name, count in sorted(came.killed.items()))
    console.print(
        f"killed in {came.runs} runs of {args.rounds * args.episodes} episodes: {told}; "
        f"{came.finished} episodes were finished and not yet taken at a kill; lost, double, "
        f"practised anew or not judged: {len(came.wrong)}"
    )
    for sentence in came.wrong:
        console.print(sentence)
    return 1 if came.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
