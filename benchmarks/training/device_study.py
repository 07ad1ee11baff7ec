"""Compares a device with the CPU: actions, latency of decisions, and speed and loss of training.

`python -m benchmarks.training.device_study RUN --dataset DATA --device cuda --out FOLDER`

Exit code 1 if an action of the device, in full precision, differs from the CPU's by more than
`TOLERANCE`, or a training on it ends with another loss.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from training.core.metrics import read_metrics
from training.data.batches import load_for_policy
from vla import cli
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.data.store import EpisodeStore
from vla.policies.vla import VLAPolicy
from vla.runtime import policy_loader
from vla.utils.arrays import to_numpy

TOLERANCE = 1e-3
"""Largest difference of an action in full precision, in rad or m."""
LOSS_RATIO = 1.25
"""Largest ratio of two final losses: bfloat16 and the order of sums change every update."""
LAST = 10
"""Rows of metrics whose median is a final loss or speed."""
WARM = 5


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Compare a device with the CPU."""

    run: tyro.conf.Positional[Path]
    """Run of `vla train`; its policy decides."""
    dataset: Path
    """Demonstrations to decide on and to train on."""
    device: str = "cuda"
    """Device."""
    recipe: str = "cue_colour"
    """Recipe of the training."""
    steps: int = 200
    """Updates of each training."""
    cpu_steps: int = 200
    """Updates of the CPU's; the losses are compared at the smaller of the two."""
    batch_sizes: tuple[int, ...] = (1, 16, 256)
    """Arms that are decided for at once."""
    decisions: int = 50
    """Timed decisions of each batch."""
    compiled: bool = True
    """Whether to compile decisions and training, too."""
    threads: int = 2
    """CPU threads."""
    out: Path = Path("runs/device-study")
    """Folder of the runs and of results.json; it must not exist."""

    def __post_init__(self) -> None:
        validate_min(self, steps=2 * LAST, cpu_steps=2 * LAST, decisions=1, threads=1)


@dataclass
class Latency:
    """Decisions of one policy on one device."""

    name: str
    batch: int
    median_ms: float
    p99_ms: float
    difference: float
    """Largest difference of an action from the CPU's, in rad or m."""


@dataclass
class Training:
    """One training."""

    name: str
    samples_per_s: float
    loss: float
    """Median of the last rows."""


def observations(
    policy: VLAPolicy, store: EpisodeStore, batch: int, count: int
) -> list[Observation]:
    """Return the first `count` decisions of `batch` episodes; a short one is held at its end."""
    sequence = np.arange(batch) % len(store.seq_lengths)
    first, last = store.seq_offsets[sequence], store.seq_lengths[sequence] - 1
    period_s = policy.n_action_steps / policy.robot.control_hz
    result = []
    for k in range(count):
        frames = first + np.minimum(k, last)
        episode, time_step = store.frame_episode[frames], store.frame_time[frames]
        images = store.images(frames)
        result.append(
            Observation(
                images=images, image_ok=np.ones(images.shape[:2], np.bool_),
                proprio=store.state_at(episode, time_step),
                task=tuple(store.tasks[e] for e in episode), time_s=np.full(batch, k * period_s),
            )
        )  # fmt: skip
    return result


def decide(
    policy: ArmPolicy, seen: list[Observation], noise: np.ndarray, wait: Callable[[], None]
) -> tuple[list[np.ndarray], list[float]]:
    """Return the actions of an episode, and the seconds of each decision."""
    state, actions, seconds = policy.initial_state(len(noise)), [], []
    for obs in seen:
        begin = time.perf_counter()
        chunk, state = policy.act(obs, state, noise)
        actions.append(to_numpy(chunk.values))
        wait()
        seconds.append(time.perf_counter() - begin)
    return actions, seconds[WARM:]


def latencies(args: StudyArgs) -> list[Latency]:
    """Time decisions on the CPU and on the device."""
    sides: dict[str, tuple[str, tuple[str, ...]]] = {
        "cpu": ("cpu", ()), args.device: (args.device, ()),
    }  # fmt: skip
    if args.compiled:
        sides[f"{args.device}, compiled"] = (args.device, ("torch-compile",))
    # Convolutions in TF32 would round to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    policies: dict[str, Any] = {
        name: policy_loader.open_policy(args.run, args.threads, targets, device=device).policy
        for name, (device, targets) in sides.items()
    }
    cuda = torch.device(args.device).type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    store = load_for_policy(policies["cpu"], args.dataset, 0)
    rows = []
    for batch in args.batch_sizes:
        seen = observations(policies["cpu"], store, batch, args.decisions + WARM)
        shape = (batch, *policies["cpu"].noise_shape)
        noise = np.random.default_rng(1).standard_normal(shape).astype("f4")
        expected: list[np.ndarray] = []
        for name, policy in policies.items():
            actions, seconds = decide(policy, seen, noise, wait)
            expected = expected or actions
            difference = max(
                float(np.abs(a - b).max()) for a, b in zip(actions, expected, strict=True)
            )
            ms = 1e3 * np.array(seconds)
            rows.append(
                Latency(name, batch, float(np.median(ms)), float(np.percentile(ms, 99)), difference)
            )
    return rows


def trainings(args: StudyArgs, console: Console) -> Iterator[Training]:
    """Train on the CPU and on the device with one seed; yield each when it ends."""
    sides: dict[str, tuple[str, ...]] = {
        "cpu": ("--device", "cpu"), args.device: ("--device", args.device),
    }  # fmt: skip
    if args.compiled:
        sides[f"{args.device}, compiled"] = ("--device", args.device, "--compile")
    most = min(args.steps, args.cpu_steps)
    for name, flags in sides.items():
        out = args.out / name.replace(", ", "_").replace(":", "_")
        steps = args.cpu_steps if name == "cpu" else args.steps
        words = [
            "train", "--recipe", args.recipe, "--dataset", str(args.dataset), *flags,
            "--steps", str(steps), "--log-every", "2", "--save-every", str(steps),
            "--eval.every", "0", "--eval.final-episodes", "0", "--threads", str(args.threads),
            "--policy.memory.type", "bank", "--out", str(out),
        ]  # fmt: skip
        harness.must(words, console)
        metrics = read_metrics(out)
        until = [row["loss"] for row in metrics if row["step"] <= most][-LAST:]
        speed = statistics.median(row["samples_per_s"] for row in metrics[-LAST:])
        yield Training(name, speed, statistics.median(until))


def decision_table(decided: list[Latency]) -> Table:
    """Return decisions beside the CPU's."""
    cpu = {row.batch: row.median_ms for row in decided if row.name == "cpu"}
    table = Table("device", "arms", "median", "p99", "times the CPU", "largest difference",
                  title="decisions")  # fmt: skip
    for row in decided:
        table.add_row(
            row.name, str(row.batch), f"{row.median_ms:.2f} ms", f"{row.p99_ms:.2f} ms",
            f"{cpu[row.batch] / row.median_ms:.1f}", f"{row.difference:.1e}",
        )  # fmt: skip
    return table


def training_table(trained: list[Training]) -> Table:
    """Return trainings beside the CPU's."""
    table = Table("device", "samples/s", "times the CPU", "loss", title="training")
    for fit in trained:
        ratio = fit.samples_per_s / trained[0].samples_per_s
        table.add_row(fit.name, f"{fit.samples_per_s:.0f}", f"{ratio:.1f}", f"{fit.loss:.4f}")
    return table


def save(out: Path, decided: list[Latency], trained: list[Training]) -> None:
    """Write what is measured so far to results.json: compiling may outlast a rented machine."""
    results = {"decisions": [asdict(x) for x in decided], "training": [asdict(x) for x in trained]}
    (out / "results.json").write_text(json.dumps(results, indent=1))


def main(argv: list[str] | None = None) -> int:
    """Run the study; exit code 1 if the device computes something else."""
    args = harness.read(StudyArgs, argv, "training.device_study")
    if args.out.exists():
        raise ValueError(f"{args.out}: exists; give another --out")
    args.out.mkdir(parents=True)
    console = Console(width=120)
    decided = latencies(args)
    save(args.out, decided, [])
    console.print(decision_table(decided))
    trained: list[Training] = []
    for row in trainings(args, console):
        trained.append(row)
        save(args.out, decided, trained)
    console.print(training_table(trained))
    wrong = [row.name for row in decided if row.difference > TOLERANCE]
    losses = [row.loss for row in trained]
    wrong += ["loss"] * (max(losses) > LOSS_RATIO * min(losses))
    console.print(f"differs: {', '.join(wrong) or 'nothing'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.device_study:main", sys.argv[1:]))
