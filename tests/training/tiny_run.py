"""A training run of seconds, and the same one in a process that dies on the way."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from rich.console import Console

from training.algos import bc
from training.core import loop
from training.core.config import EvalConfig, TrainConfig
from training.core.optimizer import Optimizer, OptimizerConfig
from vla.backbones import tiny
from vla.policies import vla

PX = 32


def tiny_config(**changes: Any) -> TrainConfig:
    """Return a run of 8 updates on three episodes each, saved after every third."""
    small = vla.Config(chunk_size=4, n_action_steps=2, backbone=tiny.Config(image_px=PX))
    run = TrainConfig(
        policy=small, algo=bc.Config(batch_size=3, states_per_episode=2, short_decisions=6),
        optimizer=OptimizerConfig(warmup_steps=3), eval=EvalConfig(every=0, final_episodes=0),
        steps=8, threads=1, log_every=1, save_every=3,
    )  # fmt: skip
    return replace(run, **changes)


def run(config: TrainConfig, data: Path, out: Path) -> Path:
    """Train in this process and return `out`."""
    loop.run(config, data, out, Console(quiet=True))
    return out


def run_and_die(data: Path, out: Path, update: int, where: str) -> None:
    """Train in a process of its own that SIGKILL ends at an update, or while saving after it."""
    step, save = Optimizer.step, safetensors.torch.save_file

    def dying_step(self: Optimizer, loss: Any) -> dict[str, float]:
        if where == "updating" and self.count == update:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, loss)

    def dying_save(tensors: Any, path: Path) -> None:
        save(tensors, path)
        if where == "saving" and path.name == "trainer.safetensors" and _count(tensors) == update:
            os.kill(os.getpid(), signal.SIGKILL)

    Optimizer.step, safetensors.torch.save_file = dying_step, dying_save
    run(tiny_config(), data, out)


def _count(tensors: Any) -> int:
    return int(next(value for name, value in tensors.items() if name.endswith(".step")))
