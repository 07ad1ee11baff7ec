"""`vla bench sim`: our environments against a bare loop and those of other projects, in one run.

All contenders of the first table run the same models, actions, substeps, cameras and image size
without shadows, and render every frame, but chunks render once. Those of the second table do the
same and render nothing, or once a turn. They take turns; medians over turns are compared.
Gymnasium's environments keep MuJoCo's multisampling and triangles, or are tuned like ours. A third
table is on a model that EnvPool has.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.sim import throughput_envpool
from benchmarks.sim.throughput_baselines import Bare, Rollout, gymnasium_env
from sim import vec_env
from sim.core.scene import Scene, compile_scene
from vla.contracts.config import validate_min
from vla.utils import arguments

BARE_BAR = 0.85
SYNC_BAR = 3.0
OTHER_BAR = 1.0
SWING_RAD = 0.15
CHUNK = 8
THREADS = 2
BARE, OURS, WORKERS = "bare", "VecEnv", "VecEnv, 2 workers"
CHUNKED, SYNC, SYNC_TUNED = (
    f"VecEnv, chunks of {CHUNK}",
    "SyncVectorEnv, no shadows",
    "SyncVectorEnv, tuned",
)
ASYNC, ASYNC_TUNED = "AsyncVectorEnv, no shadows", "AsyncVectorEnv, tuned"
WARP = "VecEnv on mujoco_warp (CPU)"
STATE_OURS, STATE_WORKERS, STATE_WARP = (
    f"{name}, drawn once a turn" for name in (OURS, WORKERS, WARP)
)
STATE_SYNC, STATE_ASYNC = "SyncVectorEnv", "AsyncVectorEnv"
ROLLOUT = f"mujoco.rollout, {THREADS} threads (physics alone)"

Rates = dict[str, list[float]]
"""Control steps per second of each contender in each turn, all environments together."""


class Contender(NamedTuple):
    """Somebody who takes turns."""

    length: int
    """Control steps per call of `step`."""
    step: Callable[[np.ndarray], object]
    """Takes actions (e, u); or (e, h, u), where `length` is more than 1."""
    close: Callable[[], object]
    """Ends it."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure environments against a bare loop and other environments."""

    task: str = "reach"
    """Task."""
    envs: int = 8
    """Environments."""
    steps: int = 40
    """Control steps of a turn, a multiple of 8."""
    turns: int = 7
    """Turns of each contender."""
    envpool: str = ""
    """A Python that has EnvPool; this one if empty."""

    def __post_init__(self) -> None:
        validate_min(self, envs=1, steps=1, turns=1)
        if self.steps % CHUNK:
            raise ValueError(f"steps: got {self.steps}, expected a multiple of {CHUNK}")


def main(argv: list[str]) -> int:
    """Measure and print the tables.

    Raises:
        ValueError: a name is unknown or a number out of range.
    """
    args = arguments.read(BenchArgs, argv, "vla bench sim")
    console = Console(highlight=False)
    scene = compile_scene(vec_env.load_task(args.task), vec_env.load_robot(None))
    warp, why_not = _warp_env(args.task, args.envs)
    drawn = _take_turns(scene, args, _drawn(scene, args.task, args.envs, warp))
    _print_drawn(console, args, drawn)
    state = _take_turns(scene, args, _state_only(scene, args, warp))
    title = f"{args.task}: {args.envs} environments, state only"
    _print_table(console, title, state, {"VecEnv": STATE_OURS})
    if why_not:
        console.print(f"mujoco_warp is not in these tables: {why_not}")
    rates, note = throughput_envpool.measure(
        args.envs, args.steps, args.turns, THREADS, args.envpool
    )
    title = f"{throughput_envpool.MODEL}: {args.envs} environments, state only"
    _print_table(console, title, rates, {"Sync": next(iter(rates))})
    if note:
        console.print(note)
    return 0


def _warp_env(task: str, num_envs: int) -> tuple[Any, str]:
    """Return environments on mujoco_warp, or None and why there are none."""
    try:
        return vec_env.make(task, num_envs, backend="mujoco_warp"), ""
    except ValueError as error:
        return None, str(error)


def _drawn(scene: Scene, task: str, num_envs: int, warp: Any) -> dict[str, Contender]:
    ours, chunked = vec_env.make(task, num_envs), vec_env.make(task, num_envs)
    shared = vec_env.make(task, num_envs, workers=min(2, num_envs))
    bare = Bare(scene, num_envs)
    for env in (ours, chunked, shared, warp):
        if env is not None:
            env.reset(0)
    contenders = {
        BARE: Contender(1, bare.step, lambda: None),
        OURS: Contender(1, ours.step, ours.close),
        WORKERS: Contender(1, shared.step, shared.close),
        CHUNKED: Contender(CHUNK, chunked.step_chunk, chunked.close),
    }
    for name, kind, tuned in (
        (SYNC, "Sync", False), (SYNC_TUNED, "Sync", True),
        (ASYNC, "Async", False), (ASYNC_TUNED, "Async", True),
    ):  # fmt: skip
        env = gymnasium_env(kind, task, num_envs, tuned=tuned, drawn=True)
        env.reset(seed=0)
        contenders[name] = Contender(1, env.step, env.close)
    if warp is not None:
        contenders[WARP] = Contender(1, warp.step, lambda: None)
    return contenders


def _state_only(scene: Scene, args: BenchArgs, warp: Any) -> dict[str, Contender]:
    ours = vec_env.make(args.task, args.envs)
    shared = vec_env.make(args.task, args.envs, workers=min(2, args.envs))
    physics = Rollout(scene, args.envs, THREADS)
    for env in (ours, shared):
        env.reset(0)
    contenders = {
        STATE_OURS: Contender(args.steps, ours.step_chunk, ours.close),
        STATE_WORKERS: Contender(args.steps, shared.step_chunk, shared.close),
    }
    for name, kind in ((STATE_SYNC, "Sync"), (STATE_ASYNC, "Async")):
        env = gymnasium_env(kind, args.task, args.envs, tuned=True, drawn=False)
        env.reset(seed=0)
        contenders[name] = Contender(1, env.step, env.close)
    contenders[ROLLOUT] = Contender(args.steps, physics.play, physics.close)
    if warp is not None:
        warp.reset(0)
        contenders[STATE_WARP] = Contender(args.steps, warp.step_chunk, warp.close)
    return contenders


def _take_turns(scene: Scene, args: BenchArgs, contenders: dict[str, Contender]) -> Rates:
    swing = _swing(scene, args.envs, args.steps)
    rates: Rates = {name: [] for name in contenders}
    try:
        for turn in range(args.turns + 1):
            for name, contender in contenders.items():
                length = contender.length
                parts = swing if length == 1 else _chunks(swing, length)
                start_s = time.perf_counter()
                for action in parts:
                    contender.step(action)
                if turn:  # the first turn warms up
                    took_s = time.perf_counter() - start_s
                    rates[name].append(args.envs * args.steps / took_s)
    finally:
        for contender in contenders.values():
            contender.close()
    return rates


def _chunks(swing: np.ndarray, length: int) -> np.ndarray:
    """Return actions (t, e, u) as chunks (t / h, e, h, u)."""
    return swing.reshape(-1, length, *swing.shape[1:]).swapaxes(1, 2)


def _swing(scene: Scene, num_envs: int, steps: int) -> np.ndarray:
    """Return actions that swing every joint about home, each environment in its own phase."""
    time_step, lane = np.arange(steps)[:, None, None], np.arange(num_envs)[None, :, None]
    wave = SWING_RAD * np.sin(2.0 * np.pi * (time_step / steps + lane / num_envs))
    return (np.array(scene.robot.home) + wave).astype(np.float32)


def _print_drawn(console: Console, args: BenchArgs, rates: Rates) -> None:
    title = f"{args.task}: {args.envs} environments, every camera drawn in every control step"
    against = {"bare": BARE, "Sync": SYNC, "Sync tuned": SYNC_TUNED}
    _print_table(console, title, rates, against)
    medians = _medians(rates)
    ours = max(medians[OURS], medians[WORKERS])
    best = max((SYNC, SYNC_TUNED, ASYNC, ASYNC_TUNED), key=medians.__getitem__)
    for what, ratio, bar in (
        ("VecEnv / bare", medians[OURS] / medians[BARE], BARE_BAR),
        ("VecEnv / SyncVectorEnv", medians[OURS] / medians[SYNC], SYNC_BAR),
        (f"VecEnv (better of 1 and 2 processes) / best other ({best})",
         ours / medians[best], OTHER_BAR),
    ):  # fmt: skip
        verdict = "met" if ratio >= bar else "missed"
        console.print(f"{what} {ratio:.2f} (bar {bar:g}: {verdict})")
    console.print(f"{os.cpu_count()} cores")


def _medians(rates: Rates) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in rates.items()}


def _print_table(console: Console, title: str, rates: Rates, against: dict[str, str]) -> None:
    medians = _medians(rates)
    table = Table("contender", "control steps/s", "range", *(f"/ {name}" for name in against))
    for name, median in medians.items():
        table.add_row(
            name,
            f"{median:.0f}",
            f"{min(rates[name]):.0f}-{max(rates[name]):.0f}",
            *(f"{median / medians[other]:.2f}" for other in against.values()),
        )
    console.print(title)
    console.print(table)
