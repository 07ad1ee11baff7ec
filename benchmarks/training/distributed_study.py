"""The study of several processes: whether they reproduce the losses of one, update by update.

`python -m benchmarks.training.distributed_study --processes 2 --steps 20 --out runs/group`

In float32, sums differ in their last digits with the order of the summands, and training magnifies
that. Two controls explain a difference: the same in float64, where an error of the code would stay
and rounding nearly vanishes, and one process whose initial weights differ in the last digit.
"""

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
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.overrides import TorchFunctionMode

from benchmarks import harness
from training.core import runtime
from training.core.config import TrainConfig
from training.core.distributed import Parallel, ProcessGroup, init_group
from training.core.optimizer import Optimizer
from training.data import demos
from training.recipes import cue_colour
from vla import cli
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.memory import bank, none

BAR, EXACT = 1e-5, 1e-11
"""Largest difference of losses of about 1: in float32, and in float64."""
DIGIT = {False: 6e-8, True: 1.1e-16}
"""Rounding of a number of about 1, by whether it is a float64."""
MEMORIES = {"none": none.Config(), "bank": bank.Config()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare the losses of one and of several processes."""

    processes: int = 2
    """Processes of a group."""
    steps: int = 20
    """Updates of each training."""
    batch: int = 8
    """Episodes per update."""
    demos: int = 24
    """Demonstrations to learn from."""
    memory: tuple[Literal["none", "bank"], ...] = ("none", "bank")
    """Memories."""
    parallel: tuple[Parallel, ...] = ("ddp",)
    """Kinds of parallel training."""
    out: Path
    """Folder of the demonstrations."""

    def __post_init__(self) -> None:
        validate_min(self, processes=1, steps=1, batch=1, demos=1)


@dataclass(frozen=True)
class Try:
    """One training of a few updates."""

    config: TrainConfig
    """Run."""
    data: Path
    """Demonstrations."""
    updates: int
    """Updates."""
    double: bool = False
    """Compute in float64."""
    nudged: bool = False
    """Start from weights that differ in the last digit."""


class Double(TorchFunctionMode):
    """Makes code that asks for float32 compute in float64."""

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


def to_float64(batch: EpisodeBatch) -> EpisodeBatch:
    """Return a batch whose floats are float64."""
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    floats = {n: v for n, v in values.items() if torch.is_tensor(v) and v.is_floating_point()}
    return replace(batch, **{name: value.double() for name, value in floats.items()})


def losses(trial: Try, group: ProcessGroup) -> list[float]:
    """Train in this process, together with the others of a group, and return every loss."""
    config = trial.config
    runtime.prepare(1)
    learner = config.algo.start(config, trial.data)
    if trial.double:
        learner.module.double()
    if trial.nudged:
        _nudge(learner.module, DIGIT[trial.double])
    if group.is_distributed:
        learner.distribute(group)
    optimizer = Optimizer(config.optimizer, learner.module, config.steps)
    generator, result = torch.Generator().manual_seed(config.seed), []
    learner.module.train()
    with Double() if trial.double else contextlib.nullcontext():
        for _ in range(trial.updates):
            (batch,) = learner.collect()
            batch = to_float64(batch) if trial.double else batch
            result.append(learner.update([batch], optimizer, generator)["loss"])
    return result


@torch.no_grad()
def _nudge(module: torch.nn.Module, digit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.mul_(1 + digit * torch.randn(parameter.shape, generator=generator))


def run(trial: Try, processes: int = 1, parallel: Parallel = "ddp") -> np.ndarray:
    """Return the losses f64 [updates] of one training in `processes` new processes.

    Raises:
        ValueError: one of them failed and printed why.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        result_path = Path(folder) / "losses.json"
        group = (port, processes, parallel)
        started = [
            spawn.Process(target=_member, args=(rank, *group, trial, result_path))
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            raise ValueError("a process of the study failed; see its output above")
        return np.array(json.loads(result_path.read_text()))


def _member(
    rank: int, port: int, size: int, parallel: Parallel, trial: Try, result_path: Path
) -> None:  # fmt: skip
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    if trial.double:
        torch.set_default_dtype(torch.float64)
    with init_group("cpu", parallel) as group:
        result = losses(trial, group)
        if group.is_main:
            result_path.write_text(json.dumps(result))


@dataclass(frozen=True)
class Result:
    """Losses f64 [updates] of one process, of several, and of one with nudged weights."""

    alone: np.ndarray
    together: np.ndarray
    nudged: np.ndarray

    @property
    def difference(self) -> float:
        """Largest difference between one process and several."""
        return float(np.abs(self.alone - self.together).max())

    @property
    def control(self) -> float:
        """Largest difference that the last digit of the weights makes."""
        return float(np.abs(self.alone - self.nudged).max())


def compare(trial: Try, processes: int, parallel: Parallel) -> Result:
    """Train alone, together, and alone from nudged weights."""
    return Result(run(trial), run(trial, processes, parallel), run(replace(trial, nudged=True)))


def side_by_side(result: Result, title: str, processes: int) -> Table:
    """Return the losses of every update."""
    losses = zip(result.alone, result.together, result.nudged, strict=True)
    return harness.table(
        title, ("update", "one process", f"{processes} processes", "difference", "nudged"),
        [
            (update, f"{a:.9f}", f"{b:.9f}", f"{abs(a - b):.1e}", f"{abs(a - c):.1e}")
            for update, (a, b, c) in enumerate(losses, 1)
        ],
        left=0,
    )  # fmt: skip


def configured(memory: str, batch: int) -> TrainConfig:
    """Return the recipe of `cue_colour` with another memory and size of batch."""
    recipe = cue_colour.recipe()
    policy: Any = recipe.policy
    algo: Any = recipe.algo
    return replace(
        recipe, threads=1, policy=replace(policy, memory=MEMORIES[memory]),
        algo=replace(algo, batch_size=batch),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the study; 1 if a difference is beyond its bar."""
    args = harness.read(Study, argv, "training.distributed_study")
    console = Console(highlight=False, soft_wrap=True)
    data = args.out / "data"
    config = demos.DemosConfig(out=data, task=cue_colour.recipe().task, episodes=args.demos)
    demos.check(config)
    demos.record_demos(config)
    missed = 0
    for memory in args.memory:
        for double in (False, True):
            trial = Try(configured(memory, args.batch), data, args.steps, double)
            for parallel in args.parallel:
                kind, bar = ("float64", EXACT) if double else ("float32", BAR)
                result = compare(trial, args.processes, parallel)
                title = f"memory {memory}, {parallel}, {kind}"
                if not double:
                    console.print(side_by_side(result, title, args.processes))
                console.print(
                    f"{title}: {args.processes} processes differ from one by "
                    f"{result.difference:.1e} (bar {bar:.0e}), "
                    f"one with nudged weights by {result.control:.1e}"
                )
                missed += result.difference > bar
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.distributed_study:main", sys.argv[1:]))
