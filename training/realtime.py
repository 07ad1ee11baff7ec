"""`vla bench realtime`: success against the time that a decision takes, for every mode.

The scheduler is the robot's (`vla.realtime`); the clock is the simulator's, and a decision is there
so many control steps after what it was made on was seen. The world does not wait meanwhile.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sim import vec_env
from sim.report import LONGEST_CHUNK
from training import host
from vla import arguments, checkpoint, files, opening, pages, statistics, svg
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.noise import episode_noise
from vla.policies.vla import VLAPolicy
from vla.realtime import MODES, Mode, RealtimeConfig, Scheduler

WIDTH = 160
"""Columns of the tables."""
NAMES: dict[Mode, str] = {
    "synchronous": "synchronous", "skip": "asynchronous, no prefix", "ensemble": "ensembling",
    "trained": "trained prefix", "guided": "guided, no Jacobian",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure success against the delay of decisions, in simulation."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Checkpoints, or what `vla export` made of them; several seeds are pooled."""
    out: Path = Path("runs/bench-realtime")
    """Folder of realtime.json, realtime.svg and realtime.html."""
    modes: tuple[Mode, ...] = MODES
    """What is done about the delay."""
    delays: tuple[int, ...] = (0, 2, 4, 6, 8)
    """Control steps that a decision takes."""
    execute: int = 8
    """Control steps from one decision to the next: from the delay to the chunk less it."""
    rates: tuple[int, ...] = (4, 6, 8, 10, 12)
    """Such periods, over which success is averaged at `rate_delay`; none to leave that out."""
    rate_delay: int = 4
    """Delay in control steps there."""
    episodes: int = 100
    """Episodes of each policy, mode and delay."""
    seed: int = 4000
    """Seed of the episodes: those of every mode are the same."""
    processes: int = 2
    """How many run side by side."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, seed=0, processes=1, execute=1, rate_delay=0)
        for name in ("policies", "modes", "delays"):
            if not getattr(self, name):
                raise ValueError(f"{name}: got none, expected at least one")


class Cell(NamedTuple):
    """One policy, driven in one way."""

    policy: Path
    """Folder."""
    config: RealtimeConfig
    """How."""


@dataclass(frozen=True)
class Outcome:
    """What its episodes came to."""

    success: list[bool] = field(default_factory=list)
    """Whether each succeeded."""
    steps: list[int] = field(default_factory=list)
    """Their control steps."""
    jump: list[float] = field(default_factory=list)
    """Largest change of a target from one control step to the next, as a share of its range."""


def cells(args: BenchArgs) -> list[Cell]:
    """Return what is to be measured, nothing twice."""
    ways = [
        RealtimeConfig(mode=mode, execute=args.execute, delay=delay)
        for mode in args.modes
        for delay in args.delays
    ]
    ways += [
        RealtimeConfig(mode=mode, execute=execute, delay=args.rate_delay)
        for mode in args.modes
        for execute in args.rates
    ]
    return [Cell(policy, way) for way in dict.fromkeys(ways) for policy in args.policies]


def check(policy: ArmPolicy, config: RealtimeConfig) -> None:
    """Raise ValueError unless a policy can be driven so."""
    config.check(policy.noise_shape[1], policy.prefix, pace(policy))
    if config.mode == "guided" and isinstance(policy, VLAPolicy) and policy.steering is not None:
        raise ValueError("a steered policy cannot be guided; take another mode")


def pace(policy: ArmPolicy) -> int:
    """Return the control steps between decisions of a policy that remembers, 0 of another."""
    return policy.execute if policy.initial_state(1).tokens.shape[1] > 1 else 0


def drive(
    policy: ArmPolicy, task: PluginConfig, config: RealtimeConfig, episodes: int, seed: int
) -> Outcome:
    """Return the outcome of episodes 0 to `episodes` - 1 of a seed.

    Raises:
        ValueError: the policy cannot be driven so.
    """
    check(policy, config)
    robot, outcome = policy.robot, Outcome()
    chunk = policy.noise_shape[1]
    scheduler = Scheduler(config, robot.control_hz, chunk, policy.prefix, pace(policy))
    env = vec_env.make(configs.type_name(task), 1, robot=robot, task_config=task)
    with contextlib.closing(env):
        obs = env.reset(seed)
        for episode in range(episodes):
            player = _Player(policy, scheduler, obs, seed, episode)
            ended, steps, targets = False, 0, [np.asarray(obs.proprio)[0]]
            while not ended:
                actions = player.targets(obs)
                step = env.step_chunk(actions[None])
                obs, done = step.obs, int(step.info["steps"][0])
                steps, targets = steps + done, [*targets, *actions[:done]]
                ended = bool(step.terminated[0] | step.truncated[0])
            outcome.success.append(bool(step.info["success"][0]))
            outcome.steps.append(steps)
            reach = np.subtract(robot.high, robot.low)
            outcome.jump.append(float((np.abs(np.diff(targets, axis=0)) / reach).max()))
    return outcome


class _Player:
    """One episode: what a robot's loop does at every control step, in simulated time."""

    def __init__(
        self, policy: ArmPolicy, scheduler: Scheduler, obs: Observation, seed: int, episode: int
    ) -> None:
        self.policy, self.scheduler, self.seed, self.episode = policy, scheduler, seed, episode
        self.state = policy.initial_state(1)
        self.tick = self.decision = 0
        self.due: tuple[int, np.ndarray, int] | None = None
        scheduler.start(0.0, np.asarray(obs.proprio)[0])

    def targets(self, obs: Observation) -> np.ndarray:
        """Return the targets f32 [n, u] from now until something has to be seen again."""
        found: list[np.ndarray] = []
        while len(found) < LONGEST_CHUNK:
            now_s = self.tick / self.policy.robot.control_hz
            self._arrive(now_s)
            if self.scheduler.begins(now_s):
                if found:
                    break
                self._decide(obs, now_s)
                self._arrive(now_s)
            found.append(self.scheduler.target(now_s))
            self.tick += 1
        return np.stack(found)

    def _decide(self, obs: Observation, now_s: float) -> None:
        at = np.array([self.episode]), np.array([self.decision])
        noise = episode_noise(self.seed, *at, self.policy.noise_shape)
        number, prefix = self.scheduler.begin(now_s)
        chunk, self.state = self.policy.act(obs, self.state, noise, prefix)
        self.due = self.tick + self.scheduler.config.delay, np.asarray(chunk.values)[0], number
        self.decision += 1

    def _arrive(self, now_s: float) -> None:
        if self.due is not None and self.due[0] <= self.tick:
            self.scheduler.arrive(now_s, *self.due[1:])
            self.due = None


def measure(args: BenchArgs) -> dict[Cell, Outcome]:
    """Return the outcome of every cell; what an earlier call with these settings found is kept.

    Raises:
        ValueError: a policy cannot be driven so.
    """
    wanted = cells(args)
    for cell in wanted:
        check(_open(cell.policy).policy, cell.config)
    keys = {cell: _key(cell, args) for cell in wanted}
    place = args.out / "cells"
    place.mkdir(parents=True, exist_ok=True)
    left = [cell for cell in wanted if not (place / f"{keys[cell]}.json").exists()]
    with Progress() as bar:
        line = bar.add_task("driving", total=len(wanted), completed=len(wanted) - len(left))
        for cell, outcome in _driven(left, args):
            files.write_json(place / f"{keys[cell]}.json", dataclasses.asdict(outcome))
            bar.advance(line)
    return {
        cell: Outcome(**json.loads((place / f"{key}.json").read_text()))
        for cell, key in keys.items()
    }


def _driven(left: Sequence[Cell], args: BenchArgs) -> Iterator[tuple[Cell, Outcome]]:
    """Yield cells as they are done, by several processes where there are several."""
    if args.processes == 1 or len(left) < 2:
        yield from ((cell, _cell(cell, args.episodes, args.seed)) for cell in left)
        return
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(args.processes, context) as pool:
        running = {pool.submit(_cell, cell, args.episodes, args.seed): cell for cell in left}
        try:
            for one in futures.as_completed(running):
                yield running[one], one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cell(cell: Cell, episodes: int, seed: int) -> Outcome:
    host.prepare(1)
    found = _open(cell.policy)
    task = configs.from_json(None, found.task, f"{found.folder}: task", vec_env.TASKS)
    return drive(found.policy, task, cell.config, episodes, seed)


@functools.cache
def _open(folder: Path) -> opening.Opened:
    return opening.open_(folder, threads=1)


def _key(cell: Cell, args: BenchArgs) -> str:
    """Return a name that stands for a cell, its episodes and the very policy."""
    found = _open(cell.policy)
    said = [configs.to_json(cell.config), args.episodes, args.seed, found.task]
    digest = hashlib.sha256(json.dumps(said).encode())
    for pattern in ("*.onnx", "manifest.json", *checkpoint.FILES):
        for path in sorted(found.folder.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Rate(NamedTuple):
    """Success of one way to drive, over all policies and episodes."""

    won: int
    """Episodes that succeeded."""
    of: int
    """Episodes."""
    jump: float
    """Median over episodes of the largest change of a target, as a share of its range."""

    def said(self) -> str:
        """Return the rate and its Wilson interval."""
        low, high = statistics.wilson(self.won, self.of)
        return f"{self.won / self.of:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def pooled(found: dict[Cell, Outcome]) -> dict[RealtimeConfig, Rate]:
    """Return the rate of every way to drive."""
    ways: dict[RealtimeConfig, list[Outcome]] = {}
    for cell, outcome in found.items():
        ways.setdefault(cell.config, []).append(outcome)
    return {
        way: Rate(
            won=sum(sum(one.success) for one in all_),
            of=sum(len(one.success) for one in all_),
            jump=float(np.median([j for one in all_ for j in one.jump])),
        )
        for way, all_ in ways.items()
    }


def delay_rows(args: BenchArgs, rates: dict[RealtimeConfig, Rate]) -> list[list[str]]:
    """Return success by delay, a row for each mode, and the jump at the longest delay."""
    rows = []
    for mode in args.modes:
        found = [
            rates[RealtimeConfig(mode=mode, execute=args.execute, delay=delay)]
            for delay in args.delays
        ]
        rows.append([NAMES[mode], *(one.said() for one in found), f"{found[-1].jump:.3f}"])
    return rows


def rate_rows(args: BenchArgs, rates: dict[RealtimeConfig, Rate]) -> list[list[str]]:
    """Return success by decision period, a row for each mode, and its mean over periods."""
    rows = []
    for mode in args.modes:
        found = [
            rates[RealtimeConfig(mode=mode, execute=execute, delay=args.rate_delay)]
            for execute in args.rates
        ]
        mean = float(np.mean([one.won / one.of for one in found]))
        rows.append([NAMES[mode], *(f"{one.won / one.of:.1%}" for one in found), f"{mean:.1%}"])
    return rows


def report(args: BenchArgs, rates: dict[RealtimeConfig, Rate], console: Console) -> None:
    """Print the tables; write them, the figures and the plot to `args.out`."""
    steps = [f"{delay} steps" for delay in args.delays]
    tables = [
        (
            f"success by delay of a decision, one every {args.execute} control steps",
            ["mode", *steps, f"jump at {args.delays[-1]}"], delay_rows(args, rates),
        ),
    ]  # fmt: skip
    if args.rates:
        tables.append(
            (
                f"success by control steps per decision, delay {args.rate_delay}",
                ["mode", *(str(n) for n in args.rates), "frequency-averaged score"],
                rate_rows(args, rates),
            )
        )
    series = [
        [
            (float(delay), rate.won / rate.of)
            for delay in args.delays
            if (rate := rates[RealtimeConfig(mode=mode, execute=args.execute, delay=delay)])
        ]
        for mode in args.modes
    ]
    drawing = svg.curves(
        series, x_label="delay, control steps", y_label="success", y_range=(0.0, 1.0)
    )
    title = f"Real-time chunks: {len(args.policies)} policies, {args.episodes} episodes each"
    body = [f"<h1>{pages.escape(title)}</h1>"]
    for name, head, rows in tables:
        table = Table(title=name)
        for column in head:
            table.add_column(column, justify="left" if column == "mode" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        escaped = [[pages.escape(value) for value in row] for row in rows]
        body += [f"<h2>{pages.escape(name)}</h2>", pages.table(head, escaped, range(1, len(head)))]
    body += [
        svg.legend([NAMES[mode] for mode in args.modes]),
        pages.figure(drawing, "Success in simulation against the control steps a decision takes. "
        "The jump is the median of the largest change of a target from one step to the next, as a "
        "share of the channel's range."),
    ]  # fmt: skip
    told = [{**configs.to_json(way), **rate._asdict()} for way, rate in rates.items()]
    files.write_json(args.out / "realtime.json", told)
    files.write_text(args.out / "realtime.svg", drawing)
    files.write_text(args.out / "realtime.html", pages.document(title, body))


def main(argv: list[str]) -> int:
    """Run the verb.

    Raises:
        ValueError: a policy is damaged, or cannot be driven so.
    """
    args = arguments.read(BenchArgs, argv, "vla bench realtime")
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    report(args, pooled(measure(args)), console)
    console.print(f"figures, plot and page: {args.out}")
    return 0
