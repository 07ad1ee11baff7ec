"""Training on a data set four times larger than the memory of its process, beside one in memory.

`python -m benchmarks.training.beyond_memory --out runs/beyond_memory`

Both runs are the same command in a process of its own. The second is in a control group with a
limit of memory, page cache included, so it can keep a part of its frames alone. It needs root, and
control groups that can be written to.
"""

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import harness
from training.core.metrics import read_metrics
from vla import cli
from vla.contracts.config import validate_min

GROUP = "mneme-beyond-memory"
PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)  # fmt: skip
"""Where control groups are and what a limit is called, in versions 1 and 2."""


@dataclass(frozen=True, kw_only=True)
class BeyondMemory:
    """Compare training in memory and beyond it."""

    episodes: int = 860
    """Demonstrations of `pick_place`."""
    image_px: int = 160
    """Height and width of their frames."""
    limit_gb: float = 1.0
    """Memory of the limited run, for the program and a part of the frames."""
    steps: int = 200
    """Updates."""
    out: Path
    """Folder of the results."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, image_px=8, steps=20, limit_gb=0)


def limited(limit_bytes: int) -> Path:
    """Return the file of a new control group with that limit to which a process writes its number.

    Raises:
        ValueError: it cannot be made here.
    """
    for place, name in PLACES:
        group = place / GROUP
        try:
            group.mkdir(exist_ok=True)
            (group / name).write_text(str(limit_bytes))
        except OSError:
            continue
        return group / "cgroup.procs"
    raise ValueError(
        "no control group with a limit of memory could be made, expected root and a writable "
        "/sys/fs/cgroup; run it on a machine of your own, or in a privileged container"
    )


def main(argv: list[str]) -> int:
    """Run what is missing and print both."""
    args, console = harness.read(BeyondMemory, argv, "training.beyond_memory"), Console()
    demos = args.out / "demos"
    harness.must(
        ["demos", "pick_place", "--episodes", str(args.episodes), "--out", str(demos)], console
    )
    words = [
        "train", "--recipe", "pick_place", "--dataset", str(demos), "--steps", str(args.steps),
        "--policy.backbone.image-px", str(args.image_px), "--policy.n-action-steps", "1",
        "--policy.memory.type", "none", "--algo.sampling", "frame", "--algo.batch-size", "32",
        "--algo.num-phase-offsets", "1", "--log-every", "1", "--eval.every", "0",
        "--eval.final-episodes", "0",
    ]  # fmt: skip
    limit = int(args.limit_gb * 1e9)
    losses, rates, names = [], [], ("in memory", "beyond memory")
    for name, group in zip(names, (None, limited(limit)), strict=True):
        out = args.out / name.replace(" ", "_")
        run([*words, "--out", str(out)], group)
        rows = read_metrics(out)
        losses.append([row["loss"] for row in rows])
        rates.append(statistics.median(row["samples_per_s"] for row in rows[10:]))
    frames = next(demos.with_name("demos-cache").glob("*.npy")).stat().st_size
    table = [
        (name, f"{rate:.1f}", f"{rate / rates[0]:.2f}", f"{loss[-1]:.6f}")
        for name, rate, loss in zip(names, rates, losses, strict=True)
    ]
    same = "the same" if losses[0] == losses[1] else "NOT the same"
    title = (
        f"{frames / 1e9:.1f} GB of frames, {args.limit_gb:g} GB of memory; the losses of all "
        f"{args.steps} updates are {same}"
    )
    columns = ("run", "samples/s, median", "of in memory", "last loss")
    console.print(harness.table(title, columns, table, left=1))
    return 0


def run(words: list[str], group: Path | None) -> None:
    """Run a command of `vla` in a process, in a control group if one is given."""

    def enter() -> None:
        if group is not None:
            group.write_text(str(os.getpid()))

    subprocess.run([sys.executable, "-m", "vla.cli", *words], check=True, preexec_fn=enter)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.beyond_memory:main", sys.argv[1:]))
