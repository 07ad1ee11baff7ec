"""The study of several processes: whether they have the losses of one, update by update.

`python -m training.team_study --processes 2 --steps 20 --out runs/team`

In float32 sums differ in their last digits with the order of what is summed, and training magnifies
that. Two controls say what a difference is: the same in float64, where an error of ours would stay
and rounding all but vanish, and one process whose weights begin a last digit away.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.overrides import TorchFunctionMode

from training import demos, host
from training.config import TrainConfig
from training.optimiser import Optimiser
from training.recipes import cue_colour
from training.team import Parallel, Team, joined
from vla.contracts.types import EpisodeBatch
from vla.memory import bank, none

BAR, EXACT = 1e-5, 1e-11
"""Largest difference of losses that are of the size of 1: in float32, and in float64."""
DIGIT = {False: 6e-8, True: 1.1e-16}
"""Rounding of a number of the size of 1, by whether it is a float64."""
MEMORIES = {"none": none.Config(), "bank": bank.Config()}


@dataclass(frozen=True)
class Try:
    """One training of a few updates."""

    config: TrainConfig
    """What is trained."""
    data: Path
    """What on."""
    updates: int
    """For so many updates."""
    double: bool = False
    """Compute in float64."""
    nudged: bool = False
    """Begin with weights that are a last digit away."""


class Double(TorchFunctionMode):
    """Lets code compute in float64 that asks for float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, in float64."""
        if func is torch.Tensor.float:
            return args[0].double()
        named = dict(kwargs or {})
        if named.get("dtype") is torch.float32:
            named["dtype"] = torch.float64
        return func(*args, **named)


def widened(batch: EpisodeBatch) -> EpisodeBatch:
    """Return a batch whose floats are float64."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    floats = {n: v for n, v in found.items() if torch.is_tensor(v) and v.is_floating_point()}
    return replace(batch, **{name: value.double() for name, value in floats.items()})


def losses(one: Try, team: Team) -> list[float]:
    """Train in this process, together with the others of a team, and return every loss."""
    config = one.config
    host.prepare(1)
    learner = config.algo.start(config, one.data)
    if one.double:
        learner.module.double()
    if one.nudged:
        _nudge_(learner.module, DIGIT[one.double])
    if team.together:
        learner.share_(team)
    optimiser = Optimiser(config.optimiser, learner.module, config.steps)
    generator, found = torch.Generator().manual_seed(config.seed), []
    learner.module.train()
    with Double() if one.double else contextlib.nullcontext():
        for _ in range(one.updates):
            batch = learner.collect()
            batch = widened(batch) if one.double else batch
            found.append(learner.update(batch, optimiser, generator)["loss"])
    return found


@torch.no_grad()
def _nudge_(module: torch.nn.Module, digit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.mul_(1 + digit * torch.randn(parameter.shape, generator=generator))


def run(one: Try, processes: int = 1, parallel: Parallel = "ddp") -> np.ndarray:
    """Return the losses f64 [updates] of one training, by so many processes of their own.

    Raises:
        ValueError: one of them failed; it has said why.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "losses.json"
        group = (port, processes, parallel)
        started = [
            spawn.Process(target=_member, args=(rank, *group, one, told))
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            raise ValueError("a process of the study failed; what it said is above")
        return np.array(json.loads(told.read_text()))


def _member(
    rank: int, port: int, size: int, parallel: Parallel, one: Try, told: Path
) -> None:  # fmt: skip
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    if one.double:
        torch.set_default_dtype(torch.float64)
    with joined("cpu", parallel) as team:
        found = losses(one, team)
        if team.leads:
            told.write_text(json.dumps(found))


@dataclass(frozen=True)
class Found:
    """Losses f64 [updates] of one process, of several, and of one that began a digit away."""

    alone: np.ndarray
    together: np.ndarray
    nudged: np.ndarray

    @property
    def apart(self) -> float:
        """Largest difference between one process and several."""
        return float(np.abs(self.alone - self.together).max())

    @property
    def control(self) -> float:
        """Largest difference that a last digit of the weights makes."""
        return float(np.abs(self.alone - self.nudged).max())


def compare(one: Try, processes: int, parallel: Parallel) -> Found:
    """Train alone, together, and alone from a digit away."""
    return Found(run(one), run(one, processes, parallel), run(replace(one, nudged=True)))


def side_by_side(found: Found, title: str, processes: int) -> Table:
    """Return the losses of every update."""
    sheet = Table(title=title)
    for column in ("update", "one process", f"{processes} processes", "difference", "a digit away"):
        sheet.add_column(column, justify="right")
    for update, (a, b, c) in enumerate(
        zip(found.alone, found.together, found.nudged, strict=True), 1
    ):
        sheet.add_row(str(update), f"{a:.9f}", f"{b:.9f}", f"{abs(a - b):.1e}", f"{abs(a - c):.1e}")
    return sheet


def configured(memory: str, batch: int) -> TrainConfig:
    """Return the recipe of `cue_colour` with another memory and size of batch."""
    made = cue_colour.recipe()
    policy: Any = made.policy
    algo: Any = made.algo
    return replace(
        made, threads=1, policy=replace(policy, memory=MEMORIES[memory]),
        algo=replace(algo, batch=batch),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the study; 1 if a difference is beyond its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="updates of each training")
    parser.add_argument("--batch", type=int, default=8, help="episodes per update")
    parser.add_argument("--demos", type=int, default=24, help="demonstrations to learn from")
    parser.add_argument("--memory", nargs="+", choices=MEMORIES, default=list(MEMORIES))
    parser.add_argument("--parallel", nargs="+", choices=get_args(Parallel), default=["ddp"])
    parser.add_argument("--out", type=Path, required=True, help="folder of the demonstrations")
    args, console = parser.parse_args(argv), Console(highlight=False, soft_wrap=True)
    data = args.out / "data"
    wanted = demos.DemosConfig(out=data, task=cue_colour.recipe().task, episodes=args.demos)
    demos.check(wanted)
    demos.record_demos(wanted)
    missed = 0
    for memory in args.memory:
        for double in (False, True):
            one = Try(configured(memory, args.batch), data, args.steps, double)
            for parallel in args.parallel:
                kind, bar = ("float64", EXACT) if double else ("float32", BAR)
                found = compare(one, args.processes, parallel)
                title = f"memory {memory}, {parallel}, {kind}"
                if not double:
                    console.print(side_by_side(found, title, args.processes))
                console.print(
                    f"{title}: {args.processes} processes differ from one by {found.apart:.1e} "
                    f"(bar {bar:.0e}), one begun a digit away by {found.control:.1e}"
                )
                missed += found.apart > bar
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
