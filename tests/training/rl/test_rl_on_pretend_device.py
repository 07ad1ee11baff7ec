"""Online RL keeps tensors on one device, and computes what the CPU computes."""

from pathlib import Path

import pytest
from rich.console import Console

from tests.pretend_device import NAME, assert_like_the_cpu
from tests.training.rl import runs
from training.core import loop
from training.core.config import EvalConfig

SHORT = {"n_iterations": 1, "steps": 2, "eval": EvalConfig(every=0, final_episodes=0)}
"""Rollouts of a second iteration would differ: the arm's contacts amplify rounding."""


@pytest.mark.parametrize("algo", runs.ALGOS)
def test_an_iteration(algo: str, begun: Path, tmp_path: Path) -> None:
    def train(device: str) -> Path:
        config, out = runs.config(algo, device=device, **SHORT), tmp_path / device
        loop.run(config, runs.start(begun, out), out, Console(quiet=True))
        return out

    assert_like_the_cpu(train)


@pytest.mark.parametrize("algo", ["asymmetric_ac", "ogpo"])
def test_a_run_is_restored_there(algo: str, begun: Path, tmp_path: Path) -> None:
    config = runs.config(algo, device=NAME, **SHORT)
    states = []
    for _ in range(2):  # the second time from its checkpoint, to nothing
        loop.run(config, runs.start(begun, tmp_path), tmp_path / "run", Console(quiet=True))
        states.append((tmp_path / "run" / "checkpoint" / "trainer.json").read_text())
    assert states[0] == states[1]
