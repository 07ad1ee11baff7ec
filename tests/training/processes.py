"""Real processes that train together in tests, as `torchrun` would start them."""

import multiprocessing
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from training.core import distributed, loop
from training.core.config import TrainConfig
from training.core.optimizer import Optimizer
from vla.utils.interrupted import Interrupted


def together(
    config: TrainConfig, data: Path, out: Path, *, dies: int | None = None,
    stops: int | None = None, parallel: distributed.Parallel = "ddp",
) -> list[tuple[int | None, str]]:  # fmt: skip
    """Train in two processes; return exit code and last words of each.

    Args:
        config: The run.
        data: What to learn from.
        out: Its folder.
        dies: Update at which SIGKILL ends the second process.
        stops: Update at which SIGTERM asks the second process alone to stop.
        parallel: Who holds which weights.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    said = [_said(out, rank) for rank in range(2)]
    for path in said:
        path.unlink(missing_ok=True)
    started = [
        spawn.Process(target=_one, args=(rank, port, config, data, out, dies, stops, parallel))
        for rank in range(2)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    words = [path.read_text() if path.exists() else "" for path in said]
    return [(process.exitcode, told) for process, told in zip(started, words, strict=True)]


def _said(out: Path, rank: int) -> Path:
    """Return the file of a process's last words."""
    return out.with_name(f"{out.name}-said-{rank}")


def _one(
    rank: int, port: int, config: TrainConfig, data: Path, out: Path,
    dies: int | None, stops: int | None, parallel: distributed.Parallel,
) -> None:  # fmt: skip
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    step = Optimizer.step

    def troubled(self: Optimizer, loss: Any) -> dict[str, float]:
        if rank == 1 and self.count == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and self.count == stops:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, loss)

    Optimizer.step = troubled
    try:
        with distributed.init_group("cpu", parallel) as mine:
            loop.run(config, data, out, Console(quiet=True), mine)
    except (ValueError, Interrupted) as error:
        _said(out, rank).write_text(f"{type(error).__name__}: {error}")
        sys.exit(1)
