"""Kills `vla label` at random moments and compares its results with an undisturbed run.

`python -m benchmarks.reward_models.crash_study --kills 100`

Runs the real command on a small data set, kills it with SIGKILL, and starts it again. A complete
data set is compared byte by byte with that of an undisturbed run, and the source with its former
content. New data sets follow until there were enough kills.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.reward_models import synthetic_dataset
from reward_models.label.parts import folder_of
from reward_models.label.source import checksums
from reward_models.label_report.read import LABELS_FILE
from vla.contracts.config import validate_min
from vla.utils import arguments

MOMENTS = (("", 1.0), ("shard*.lock", 0.4), ("shard*.lock", 0.4), ("join.lock", 0.1))
"""The lock to wait for, and the longest time after it as a share of a whole run."""
TIMED = {LABELS_FILE}
"""Files that may differ: they hold times."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Kill labelling at random moments; compare with an undisturbed run."""

    kills: int = 100
    """Number of kills."""
    seed: int = 0
    """Seed of the moments."""
    work: Path = Path("runs/crash-study")
    """Folder of everything; emptied first."""
    source: Path | None = None
    """Data set; a small synthetic one if not given."""
    reward_model: str = ""
    """Reward model; a small one with random weights if not given."""
    episodes: int = 24
    """Episodes of the synthetic data set."""
    steps: int = 60
    """Frames of each of its episodes."""

    def __post_init__(self) -> None:
        validate_min(self, kills=1, seed=0, episodes=1, steps=2)


@dataclass
class Outcome:
    """Counts of the study."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by the command's stage."""
    completed: int = 0
    """Data sets that were completed after kills."""
    different: list[str] = field(default_factory=list)
    """Files with wrong content."""
    seconds: float = 0.0
    """Time of an undisturbed run."""


def command(source: Path, reward_model: str, out: Path) -> list[str]:
    """Return the command; with little memory, so that it saves often."""
    words = [sys.executable, "-m", "vla.cli", "label", str(source), "--reward-model", reward_model]
    return [*words, "--out", str(out), "--memory-mb", "1", "--no-report"]


def study(args: StudyArgs) -> Outcome:
    """Run the study.

    Raises:
        ValueError: the command fails by itself.
    """
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    source = args.source or synthetic_dataset.make_data(
        args.work / "data", episodes=args.episodes, steps=args.steps, seed=args.seed
    )
    reward_model = args.reward_model or str(
        synthetic_dataset.make_reward_model(args.work / "reward_model")
    )
    before = checksums(source)
    begin = time.perf_counter()
    _run(command(source, reward_model, args.work / "undisturbed"))
    outcome = Outcome(seconds=time.perf_counter() - begin)
    expected = _content(args.work / "undisturbed")
    rng = np.random.default_rng(args.seed)
    out = args.work / "out"
    killed = 0
    while sum(outcome.kills.values()) < args.kills:
        place = _kill_once(command(source, reward_model, out), out, outcome.seconds, rng)
        if place:
            outcome.kills[place] += 1
            killed += 1
            continue
        _compare(outcome, expected, out)
        outcome.completed += killed > 0
        killed = 0
        shutil.rmtree(out)
    _run(
        command(source, reward_model, out)
    )  # the last kill, too, must leave something to go on from
    outcome.completed += 1
    _compare(outcome, expected, out)
    after = checksums(source)
    outcome.different += [f"source: {n}" for n in before if before[n] != after.get(n)]
    return outcome


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(words[1:])}: failed ({done.stderr.strip()[-300:]})")


def _kill_once(words: list[str], out: Path, whole_s: float, rng: np.random.Generator) -> str:
    """Start the command and kill it at a random moment; return what it was at, "" if it finished.

    Imports take most of a short run, so three in four kills fall after scoring began, and one of
    those after the data set was begun to be written.
    """
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    parts = folder_of(out)
    lock, longest_s = MOMENTS[rng.integers(len(MOMENTS))]
    mark = _taken(parts, lock)
    while lock and process.poll() is None and _taken(parts, lock) == mark:
        time.sleep(0.002)
    wait_s = rng.uniform(0, longest_s * whole_s)
    try:
        _, output = process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        place = _place(out, parts)
        process.kill()
        _, output = process.communicate()
    if process.returncode == 0:
        return ""
    if process.returncode > 0:
        raise ValueError(f"{' '.join(words[1:])}: failed ({output.strip()[-300:]})")
    return place


def _taken(parts: Path, lock: str) -> dict[str, int]:
    """Return when the locks of a name were last taken."""
    try:
        return {file.name: file.stat().st_mtime_ns for file in parts.glob(lock)} if lock else {}
    except FileNotFoundError:  # the parts are being deleted
        return {"deleted": 0}


def _place(out: Path, parts: Path) -> str:
    """Return what the command seems to be at."""
    if any(out.parent.glob(f".{out.name}.new-*")):
        return "writing the data set"
    if out.exists():
        return "after it was written"
    return "scoring" if any(parts.glob("episode-*.parquet")) else "before the first part"


def _content(folder: Path) -> dict[str, str]:
    return {name: value for name, value in checksums(folder).items() if name not in TIMED}


def _compare(outcome: Outcome, expected: dict[str, str], out: Path) -> None:
    content = _content(out)
    names = sorted({*expected, *content})
    outcome.different += [n for n in names if expected.get(n) != content.get(n)]
    left = [p for p in out.parent.glob(f"*{out.name}*") if p != out]
    outcome.different += [f"left behind: {p.name}" for p in left]


def main(argv: list[str]) -> int:
    """Run the study and print its table; exit code 1 if anything differs."""
    args = arguments.read(StudyArgs, argv, "python -m benchmarks.reward_models.crash_study")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    outcome = study(args)
    table = Table(title=f"vla label, killed {sum(outcome.kills.values())} times (SIGKILL)")
    table.add_column("")
    table.add_column("count", justify="right")
    for place, count in sorted(outcome.kills.items()):
        table.add_row(f"killed {place}", str(count))
    table.add_row("data sets completed after kills", str(outcome.completed))
    table.add_row("files that differ from an undisturbed run, or in the source",
                  str(len(outcome.different)))  # fmt: skip
    Console().print(table)
    for name in outcome.different[:20]:
        print(f"differs: {name}")
    return 1 if outcome.different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
