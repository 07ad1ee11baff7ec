"""`torchrun` as one types it: two processes, one of which is killed, and the same line again."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.training import distributed_study
from training.core.metrics import read_metrics
from vla import checkpoint, cli

ROOT = Path(__file__).parents[2]
SMALL = (
    "--recipe cue_colour --policy.chunk_size 4 --policy.n_action_steps 2 "
    "--policy.backbone.image-px 32 --algo.batch-size 3 --algo.states-per-episode 2 "
    "--algo.short-decisions 6 --threads 1 --steps 60 --save-every 5 --log-every 1 "
    "--eval.every 0 --eval.final-episodes 1"
)
"""A run of seconds that ends with an episode in simulation."""


def started(data: Path, out: Path) -> "subprocess.Popen[str]":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"--nproc-per-node 2 --master-port {port} -m vla.cli train --dataset {data} --out {out}"
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("torchrun")), *words.split(), *SMALL.split()],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def member(parent: int, rank: int) -> int:
    """Return the process of a rank that another process started."""
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in told:
                return child
    raise AssertionError(f"process {parent} has no rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_process_ends_the_command_and_the_same_command_goes_on(
    arm_dataset, tmp_path
) -> None:
    out = tmp_path / "run"
    process = started(arm_dataset, out)
    while process.poll() is None and not (out / "checkpoint").exists():
        time.sleep(0.01)
    os.kill(member(process.pid, 1), signal.SIGKILL)
    said, _ = process.communicate()
    assert process.returncode == 1
    assert said.count("one of the 2 processes of this run has ended; its message is above") == 1
    saved = checkpoint.load(out)[1].step
    assert 5 <= saved < 60
    again = started(arm_dataset, out)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert f"{60 - saved} updates to go" in said
    assert checkpoint.load(out)[1].step == 60
    steps = [row["step"] for row in read_metrics(out) if "loss" in row]
    assert steps == list(range(1, 61))
    assert not list(out.glob(".*"))  # nothing half written, by either of them
    assert (out / "evaluation.json").exists()


def test_weights_of_one_process_are_not_shared_out(tmp_path, capsys) -> None:
    assert cli.main(["train", "--parallel", "fsdp", "--out", str(tmp_path / "run")]) == 1
    assert "parallel: got fsdp with one process, expected two or more" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_in_float64_two_processes_learn_with_a_memory_what_one_does(arm_dataset) -> None:
    config = distributed_study.configured("bank", 3)
    one = distributed_study.Try(config, arm_dataset, 4, double=True)
    assert (
        abs(distributed_study.run(one) - distributed_study.run(one, 2)).max()
        < distributed_study.EXACT
    )
