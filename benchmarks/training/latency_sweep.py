"""`vla bench realtime`: success by inference latency, for every mode of real-time chunking.

The scheduler is the robot's (`vla.runtime.rtc_scheduler`) and the clock is the simulator's. A
decision arrives a number of control steps after its observation; the world does not wait meanwhile.
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

from benchmarks import harness
from sim import vec_env
from sim.core.step_buffers import LONGEST_CHUNK
from sim.rollout import rollout
from training.core import runtime
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.runtime import policy_loader
from vla.runtime.noise import episode_noise
from vla.runtime.rtc_scheduler import MODES, Mode, RealtimeConfig, Scheduler
from vla.utils import arguments, files, pages

WIDTH = 160
"""Columns of the tables."""
NAMES: dict[Mode, str] = {
    "synchronous": "synchronous", "skip": "asynchronous, no prefix", "ensemble": "ensembling",
    "trained": "trained prefix", "guided": "guided, no Jacobian",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure success by the delay of decisions, in simulation."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Checkpoints or exported policies; several seeds are pooled."""
    out: Path = Path("runs/bench-realtime")
    """Folder of realtime.json, realtime.svg and realtime.html."""
    modes: tuple[Mode, ...] = MODES
    """Modes of real-time chunking."""
    delays: tuple[int, ...] = (0, 2, 4, 6, 8)
    """Control steps that a decision takes."""
    n_action_steps: int = 8
    """Control steps from one decision to the next: from the delay to the chunk less it."""
    rates: tuple[int, ...] = (4, 6, 8, 10, 12)
    """Further periods, over which success is averaged at `rate_delay`; empty for none."""
    rate_delay: int = 4
    """Delay in control steps for `rates`."""
    episodes: int = 100
    """Episodes of each policy, mode and delay."""
    seed: int = 4000
    """Seed of the episodes, which are the same for every mode."""
    processes: int = 2
    """Processes."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, seed=0, processes=1, n_action_steps=1, rate_delay=0)
        for name in ("policies", "modes", "delays"):
            if not getattr(self, name):
                raise ValueError(f"{name}: got none, expected at least one")


class Cell(NamedTuple):
    """One policy in one mode with one delay and period."""

    policy: Path
    """Folder."""
    config: RealtimeConfig
    """Mode, delay and period."""


@dataclass(frozen=True)
class Outcome:
    """The episodes of a cell."""

    success: list[bool] = field(default_factory=list)
    """Whether each succeeded."""
    steps: list[int] = field(default_factory=list)
    """Their control steps."""
    jump: list[float] = field(default_factory=list)
    """Largest change of a target from one control step to the next, as a share of its range."""


def cells(args: BenchArgs) -> list[Cell]:
    """Return the cells to measure, without duplicates."""
    ways = [
        RealtimeConfig(mode=mode, n_action_steps=args.n_action_steps, delay=delay)
        for mode in args.modes
        for delay in args.delays
    ]
    ways += [
        RealtimeConfig(mode=mode, n_action_steps=n_action_steps, delay=args.rate_delay)
        for mode in args.modes
        for n_action_steps in args.rates
    ]
    return [Cell(policy, way) for way in dict.fromkeys(ways) for policy in args.policies]


def check(policy: ArmPolicy, config: RealtimeConfig) -> None:
    """Raise ValueError unless a policy can run with these settings."""
    config.check(policy.noise_shape[1], policy.max_prefix_len, pace(policy))


def pace(policy: ArmPolicy) -> int:
    """Return the control steps between decisions of a policy that remembers, 0 of another."""
    return policy.n_action_steps if policy.remembers else 0


def drive(
    policy: ArmPolicy, task: PluginConfig, config: RealtimeConfig, episodes: int, seed: int
) -> Outcome:
    """Return the outcome of episodes 0 to `episodes` - 1 of a seed.

    Raises:
        ValueError: the policy cannot run with these settings.
    """
    check(policy, config)
    robot, outcome = policy.robot, Outcome()
    chunk = policy.noise_shape[1]
    scheduler = Scheduler(config, robot.control_hz, chunk, policy.max_prefix_len, pace(policy))
    reach = np.subtract(robot.high, robot.low)
    player: _Player | None = None

    def act(obs: Observation, number: np.ndarray) -> np.ndarray:
        nonlocal player
        if player is None or player.episode != number[0]:
            player = _Player(policy, scheduler, obs, seed, int(number[0]))
        return player.targets(obs)[None]

    env = vec_env.make(configs.type_name(task), 1, robot=robot, task_config=task)
    with contextlib.closing(env):
        obs = env.reset(seed)
        targets = [np.asarray(obs.proprio)[0]]
        for played in rollout(env, obs, act, episodes):
            targets += list(played.actions[0, : int(played.step.info["steps"][0])])
            for ended in played.ended:
                outcome.success.append(ended.success)
                outcome.steps.append(ended.steps)
                outcome.jump.append(float((np.abs(np.diff(targets, axis=0)) / reach).max()))
                targets = [np.asarray(played.step.obs.proprio)[0]]
    return outcome


class _Player:
    """One episode: a robot's control loop in simulated time."""

    def __init__(
        self, policy: ArmPolicy, scheduler: Scheduler, obs: Observation, seed: int, episode: int
    ) -> None:
        self.policy, self.scheduler, self.seed, self.episode = policy, scheduler, seed, episode
        self.state = policy.initial_state(1)
        self.tick = self.decision = 0
        self.due: tuple[int, np.ndarray, int] | None = None
        scheduler.start(0.0, np.asarray(obs.proprio)[0])

    def targets(self, obs: Observation) -> np.ndarray:
        """Return the targets f32 [n, u] from now until the next observation is needed."""
        targets: list[np.ndarray] = []
        while len(targets) < LONGEST_CHUNK:
            now_s = self.tick / self.policy.robot.control_hz
            self._arrive(now_s)
            if self.scheduler.begins(now_s):
                if targets:
                    break
                self._decide(obs, now_s)
                self._arrive(now_s)
            targets.append(self.scheduler.target(now_s))
            self.tick += 1
        return np.stack(targets)

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
    """Return the outcome of every cell; those of an earlier call are read.

    Raises:
        ValueError: a policy cannot run with these settings.
    """
    grid = cells(args)
    for cell in grid:
        check(_open(cell.policy).policy, cell.config)
    keys = {cell: _key(cell, args) for cell in grid}
    place = args.out / "cells"
    place.mkdir(parents=True, exist_ok=True)
    left = [cell for cell in grid if not (place / f"{keys[cell]}.json").exists()]
    with Progress() as bar:
        line = bar.add_task("driving", total=len(grid), completed=len(grid) - len(left))
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
            for done in futures.as_completed(running):
                yield running[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cell(cell: Cell, episodes: int, seed: int) -> Outcome:
    runtime.prepare(1)
    opened = _open(cell.policy)
    task = configs.from_json(None, opened.task, f"{opened.folder}: task", vec_env.TASKS)
    return drive(opened.policy, task, cell.config, episodes, seed)


@functools.cache
def _open(folder: Path) -> policy_loader.LoadedPolicy:
    return policy_loader.open_policy(folder, threads=1)


def _key(cell: Cell, args: BenchArgs) -> str:
    """Return a name that identifies a cell, its episodes and the weights of the policy."""
    opened = _open(cell.policy)
    settings = [configs.to_json(cell.config), args.episodes, args.seed, opened.task]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for pattern in ("*.onnx", "manifest.json", *checkpoint.FILES):
        for path in sorted(opened.folder.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Rate(NamedTuple):
    """Success with one mode, delay and period, over all policies and episodes."""

    won: int
    """Episodes that succeeded."""
    of: int
    """Episodes."""
    jump: float
    """Median over episodes of the largest change of a target, as a share of its range."""

    def text(self) -> str:
        """Return the rate and its Wilson interval."""
        return harness.share(self.won, self.of)


def pooled(measured: dict[Cell, Outcome]) -> dict[RealtimeConfig, Rate]:
    """Return the rate of every mode, delay and period."""
    ways: dict[RealtimeConfig, list[Outcome]] = {}
    for cell, outcome in measured.items():
        ways.setdefault(cell.config, []).append(outcome)
    return {
        way: Rate(
            won=sum(sum(outcome.success) for outcome in outcomes),
            of=sum(len(outcome.success) for outcome in outcomes),
            jump=float(np.median([j for outcome in outcomes for j in outcome.jump])),
        )
        for way, outcomes in ways.items()
    }


def delay_rows(args: BenchArgs, rates: dict[RealtimeConfig, Rate]) -> list[list[str]]:
    """Return success by delay, a row for each mode, and the jump at the longest delay."""
    rows = []
    for mode in args.modes:
        chosen = [
            rates[RealtimeConfig(mode=mode, n_action_steps=args.n_action_steps, delay=delay)]
            for delay in args.delays
        ]
        rows.append([NAMES[mode], *(rate.text() for rate in chosen), f"{chosen[-1].jump:.3f}"])
    return rows


def rate_rows(args: BenchArgs, rates: dict[RealtimeConfig, Rate]) -> list[list[str]]:
    """Return success by decision period, a row for each mode, and its mean over periods."""
    rows = []
    for mode in args.modes:
        chosen = [
            rates[RealtimeConfig(mode=mode, n_action_steps=n_action_steps, delay=args.rate_delay)]
            for n_action_steps in args.rates
        ]
        mean = float(np.mean([rate.won / rate.of for rate in chosen]))
        rows.append([NAMES[mode], *(f"{rate.won / rate.of:.1%}" for rate in chosen), f"{mean:.1%}"])
    return rows


def report(args: BenchArgs, rates: dict[RealtimeConfig, Rate], console: Console) -> None:
    """Print the tables; write tables, results and plot to `args.out`."""
    steps = [f"{delay} steps" for delay in args.delays]
    tables = [
        (
            f"success by delay of a decision, one every {args.n_action_steps} control steps",
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
            if (
                rate := rates[
                    RealtimeConfig(mode=mode, n_action_steps=args.n_action_steps, delay=delay)
                ]
            )
        ]
        for mode in args.modes
    ]
    drawing = harness.plot(series, x="delay, control steps", y="success", y_range=(0.0, 1.0))
    for name, head, rows in tables:
        console.print(harness.table(name, head, rows))
    page = pages.render(
        "vla/utils/tables.html.j2", tables=tables, numbers=range(1, 99), about="", drawing=drawing,
        title=f"Real-time chunks: {len(args.policies)} policies, {args.episodes} episodes each",
        names=[NAMES[mode] for mode in args.modes],
        caption="Success in simulation against the control steps a decision takes. The jump is the "
        "median of the largest change of a target from one step to the next, as a share of the "
        "channel's range.",
    )  # fmt: skip
    outcomes = [{**configs.to_json(way), **rate._asdict()} for way, rate in rates.items()]
    files.write_json(args.out / "realtime.json", outcomes)
    files.write_text(args.out / "realtime.svg", drawing)
    files.write_text(args.out / "realtime.html", page)


def main(argv: list[str]) -> int:
    """Run the verb.

    Raises:
        ValueError: a policy is damaged, or cannot run with these settings.
    """
    args = arguments.read(BenchArgs, argv, "vla bench realtime")
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    report(args, pooled(measure(args)), console)
    console.print(f"results, plot and page: {args.out}")
    return 0
