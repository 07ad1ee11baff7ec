"""Runs of practice that take seconds."""

from dataclasses import replace
from pathlib import Path

from tests.training.rl.conftest import TASK
from training.algos import dppo, filtered_bc, ogpo, steer
from training.config import EvalConfig
from training.rl.config import PracticeConfig, Start

ALGOS = {
    "filtered_bc": filtered_bc.Config(batch=4, queries=2),
    "ogpo": ogpo.Config(
        episodes=1, queries=2, group=3, critics=2, width=16, critic_batch=8, warmup=3, cloned=2
    ),
    "dppo": dppo.Config(episodes=1, cloned=2, warmup=0),
    "steer": steer.Config(
        candidates=2, width=16, critics=2, critic_steps=2, critic_batch=8, warmup=3
    ),
}


def start(place: Path, out: Path) -> Start:
    """Return what a run in `out` starts from."""
    return Start(
        policy=place / "start", demos=place / "demos", critic=None, experience=out / "experience"
    )


def config(algo: str = "filtered_bc", **changes) -> PracticeConfig:
    """Return a run of two rounds of two episodes, each followed by two updates."""
    run = PracticeConfig(
        task=TASK, algo=ALGOS[algo], reward="oracle", rounds=2, episodes=2, environments=2,
        steps=4, save_every=1, log_every=1, threads=1, shift_px=0, gain=0.0,
        eval=EvalConfig(every=0, final_episodes=2),
    )  # fmt: skip
    return replace(run, **changes)
