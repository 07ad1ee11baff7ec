"""`vla bench train`: training speed against LeRobot's DiffusionPolicy on the same data set.

Same data, cameras, image size, batch, observation steps, chunk, noise levels, optimizer and thread
count; parameter counts are matched by widening our denoiser. LeRobot reads through its own data
set and PyTorch's DataLoader, as `lerobot-train` does. Neither trains long enough to be useful.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sim import vec_env
from training.algos import bc
from training.core import runtime
from training.core.config import TrainConfig
from training.core.optimizer import Optimizer
from training.data import demos
from vla.contracts import registry
from vla.heads import diffusion
from vla.memory import none
from vla.policies import lerobot_diffusion, vla
from vla.utils import arguments

CHUNK = 16
SMALLEST = (64, 128)
"""Channels of the smallest U-Net that LeRobot's configuration allows."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Compare training speed with LeRobot's DiffusionPolicy."""

    out: Path = Path("runs/bench-train")
    """Folder of the data set, which is recorded if missing."""
    episodes: int = 60
    """Episodes of `reach` to record."""
    batch: int = 64
    """Decisions per update."""
    rounds: int = 3
    """Interleaved rounds; medians are reported."""
    updates: int = 6
    """Updates per round of LeRobot; ours runs ten times as many."""
    loader_workers: int = 2
    """Worker processes of LeRobot's DataLoader."""
    threads: int = 2
    """CPU threads of each side."""


@dataclass
class Contender:
    """One side of the comparison."""

    name: str
    parameters: int
    updates: int
    load: Callable[[], Any]
    """Return the next batch."""
    learn: Callable[[Any], None]
    """Do one update on a batch."""


@dataclass(frozen=True)
class Rates:
    """Samples per second of one round."""

    whole: float
    """Load and learn, as in training."""
    data: float
    """Loading alone."""
    model: float
    """Learning alone, on one loaded batch."""


def ours(data: Path, batch: int, updates: int, parameters: int) -> Contender:
    """Return our side, its denoiser widened to within 10 % of `parameters`."""
    width = 64
    while True:
        policy = vla.Config(
            memory=none.Config(), head=diffusion.Config(width=width, num_noise_samples=1)
        )
        config = TrainConfig(policy=policy, algo=bc.Config(sampling="frame", batch_size=batch))
        learner = config.algo.start(config, data)
        count = sum(p.numel() for p in learner.module.parameters())
        if count >= 0.95 * parameters:
            break
        width = max(width + 32, int(width * (parameters / count) ** 0.4))
    optimizer = Optimizer(config.optimizer, learner.module, 10_000)
    generator = torch.Generator().manual_seed(0)
    learner.module.train()

    def learn(batch: Any) -> None:
        learner.update(batch, optimizer, generator)

    return Contender("mneme-vla", count, updates, learner.collect, learn)


def lerobot(data: Path, batch: int, updates: int, workers: int) -> Contender:
    """Return LeRobot's side: the smallest DiffusionPolicy its configuration allows."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.policies.factory import make_pre_post_processors

    robot = vec_env.load_robot(None)
    config = lerobot_diffusion.Config(chunk_size=CHUNK, down_dims=SMALLEST)
    policy = config.network(robot).train()
    steps = {key: [0.0] for key in policy.config.input_features}
    steps["action"] = [i / robot.control_hz for i in range(CHUNK)]
    dataset = LeRobotDataset("local/bench", root=data, delta_timestamps=steps, video_backend="pyav")
    prepare, _ = make_pre_post_processors(policy.config, dataset_stats=dataset.meta.stats)
    adam = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=workers, drop_last=True,
        multiprocessing_context="spawn" if workers else None, persistent_workers=workers > 0,
    )  # fmt: skip
    stream = forever(loader)

    def learn(batch: Any) -> None:
        loss, _ = policy.forward(batch)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        adam.step()

    count = sum(p.numel() for p in policy.parameters())
    return Contender("LeRobot 0.4.4", count, updates, lambda: prepare(next(stream)), learn)


def forever(loader: Any) -> Iterator[Any]:
    """Repeat a DataLoader."""
    while True:
        yield from loader


def measure(side: Contender, batch: int) -> Rates:
    """Run one round of a side."""

    def timed(work: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        for _ in range(side.updates):
            work()
        return batch * side.updates / (time.perf_counter() - begin)

    loaded = side.load()
    side.learn(loaded)
    return Rates(
        whole=timed(lambda: side.learn(side.load())),
        data=timed(side.load),
        model=timed(lambda: side.learn(loaded)),
    )


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench train")
    runtime.prepare(args.threads)
    data = args.out / "data"
    demos.record_demos(
        demos.DemosConfig(
            out=data, task=registry.load("sim.tasks", "reach").Config(), episodes=args.episodes
        )
    )
    begin = time.perf_counter()
    theirs = lerobot(data, args.batch, args.updates, args.loader_workers)
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    us = ours(data, args.batch, 10 * args.updates, theirs.parameters)
    read = time.perf_counter() - begin
    rounds = [(measure(us, args.batch), measure(theirs, args.batch)) for _ in range(args.rounds)]
    Console().print(_table(us, theirs, rounds))
    Console().print(
        f"before the first batch: ours reads and decodes everything in {read:.1f} s (cached "
        f"afterwards), LeRobot opens the data set and imports in {opened:.1f} s"
    )
    return 0


def _table(us: Contender, theirs: Contender, rounds: list[tuple[Rates, Rates]]) -> Table:
    table = Table(title="training, samples per second (median of interleaved rounds)")
    for column in ("", us.name, theirs.name, "ratio"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(
        "parameters", f"{us.parameters:,}", f"{theirs.parameters:,}",
        f"{us.parameters / theirs.parameters:.2f}",
    )  # fmt: skip
    labels = {"whole": "load + learn", "data": "loading alone", "model": "learning alone"}
    for field in dataclasses.fields(Rates):
        a, b = (statistics.median(getattr(r[i], field.name) for r in rounds) for i in (0, 1))
        table.add_row(labels[field.name], f"{a:,.0f}", f"{b:,.1f}", f"{a / b:.1f}")
    return table
