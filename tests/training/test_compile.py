"""`torch.compile` by inductor on the CPU: the numbers of eager mode, and nothing compiled again.

In a process of its own: the checks of shapes in tests are no code that can be compiled.
"""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_and_decisions_compile_nothing_after_the_first(
    arm_dataset: Path, tmp_path: Path
) -> None:
    words = ["--dataset", arm_dataset, "--out", tmp_path / "runs"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.compile_check", *words], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("graphs in the first 12, 0 in the next 12") == 2
