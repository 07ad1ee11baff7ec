"""Lets every verb that writes fail at each of its calls in turn, or kills it there, as SQLite does.

`python -m benchmarks.hardening.io_fault_study --points 12 --kills 300 --out FOLDER`

After each fault the output must be the old one, the new one, or a state that the command resumes;
the inputs must be unchanged, and the same command, run again, must end with the result of an
undisturbed run to the bit and leave nothing else behind. Exit code 1 if any is not so.
"""

import hashlib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import harness
from benchmarks.hardening import io_faults, verbs
from benchmarks.hardening.io_faults import CALLS, KINDS, Ended
from benchmarks.hardening.verbs import VERBS
from vla import cli
from vla.contracts.config import validate_min

Content = dict[str, str]
STATES = ("old", "new", "resumable", "third")


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Let every verb that writes fail at its calls in turn; check what it leaves."""

    verbs: tuple[str, ...] = tuple(VERBS)
    """Verbs to try."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """Kinds of faults."""
    points: int = 12
    """Most calls that fail, per verb and kind, evenly over all; 0: every call."""
    kills: int = 300
    """Kills, over all verbs."""
    out: Path = Path("runs/io-faults")
    """Folder of everything; emptied first."""

    def __post_init__(self) -> None:
        validate_min(self, points=0, kills=0)
        for name, known in (("verbs", VERBS), ("kinds", KINDS)):
            for one in getattr(self, name):
                if one not in known:
                    raise ValueError(f"{name}: got {one!r}, expected some of {', '.join(known)}")


@dataclass
class Found:
    """What faults of one kind did to one verb."""

    verb: str
    kind: str
    calls: int = 0
    """Calls of an undisturbed run."""
    faults: int = 0
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    """Outputs after the fault, by state."""
    defects: list[str] = field(default_factory=list)


def content(path: Path, varies: tuple[str, ...] = ()) -> Content:
    """Return the hash of every file below a path, by relative name; {} if it is not there.

    Of files that hold times, and of links' targets, the name alone counts.
    """
    found: Content = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else [path] * path.exists():
        name = file.relative_to(path).as_posix()
        if name.startswith(varies):
            continue
        if file.is_file():
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


class Trial:
    """One verb, its inputs and its undisturbed result."""

    def __init__(self, name: str, work: Path, place: Path) -> None:
        self.name, self.verb, self.work, self.place = name, VERBS[name], work, place
        self.out = place / "out"
        self.log = place.parent / f"{place.name}.log"
        self.words = self.verb.words(work, self.out)
        self.sources = content(work)
        self._fresh()
        self.old = content(self.out, self.verb.varies)
        self.calls = self._must(CALLS)
        self.new = content(self.out, self.verb.varies)
        self.beside = {one.name for one in self.place.iterdir()}
        self._fresh()
        self._must(CALLS)
        again = content(self.out, self.verb.varies)
        self.different = sorted(n for n in self.new if self.new[n] != again.get(n))

    def count(self, kind: str) -> int:
        """Return how many calls of a kind an undisturbed run makes."""
        if kind == "memory":
            return io_faults.ALLOCATIONS
        self._fresh()
        calls = self._must(KINDS[kind].calls, kind if kind == "encode" else "")
        return io_faults.ENCODED.value if kind == "encode" else calls

    def fail(self, kind: str, at: int, found: Found) -> None:
        """Let one call fail, look at what is left, and run the command again."""
        self._fresh()
        ended = self._run(kind, at)
        if not ended.failed and ended.code == 0:
            return  # it made fewer calls than before
        found.faults += 1
        where = f"{self.name}, {kind} at call {at}"
        state = self._state(found, where)
        found.states[state] += 1
        if message := _wrong_end(ended, kind):
            found.defects.append(f"{where}: {message}")
        if content(self.work) != self.sources:
            found.defects.append(f"{where}: an input was changed")
        if found.defects[-1:] and where in found.defects[-1]:
            shutil.copyfile(self.log, self.log.with_suffix(f".{len(found.defects)}.log"))
        again = self._run("", 0)
        if again.code and not (self.verb.refuses and state == "new"):
            found.defects.append(f"{where}: the next run fails: {_last(again)}")
        elif wrong := self._wrong():
            found.defects.append(f"{where}: the next run's result differs in {wrong}")
        else:
            for left in {one.name for one in self.place.iterdir()} - self.beside:
                found.defects.append(f"{where}: {left} is left after the next run")

    def _state(self, found: Found, where: str) -> str:
        now = content(self.out, self.verb.varies)
        if now == self.old:
            return "old"
        if now == self.new:
            return "new"
        try:
            if self.verb.resumes and self.verb.resumes(self.out):
                return "resumable"
        except Exception as error:  # noqa: BLE001  whatever it is, the state is a third one
            found.defects.append(f"{where}: the output does not open: {error}")
            return "third"
        found.defects.append(f"{where}: the output is neither old nor new: {self._wrong()}")
        return "third"

    def _wrong(self) -> list[str]:
        """Return the first files that differ from the undisturbed result."""
        now = content(self.out, self.verb.varies)
        return sorted(n for n in {*now, *self.new} if now.get(n) != self.new.get(n))[:3]

    def _fresh(self) -> None:
        verbs.clear(self.place)
        self.place.mkdir(parents=True)
        if self.verb.before:
            before = self.work / self.verb.before
            copy = shutil.copytree if before.is_dir() else shutil.copyfile
            copy(before, self.out)

    def _run(self, kind: str, at: int, count: tuple[str, ...] = CALLS) -> Ended:
        """Run the command; let one call fail."""
        return io_faults.run(
            lambda: cli.main(self.words), self.place, self.log, KINDS.get(kind), at, count=count
        )

    def _must(self, count: tuple[str, ...], kind: str = "") -> int:
        """Run the command to its good end; return how many calls it made."""
        ended = self._run(kind, 0, count)
        if ended.code:
            raise ValueError(f"vla {' '.join(self.words)}: fails by itself: {_last(ended)}")
        return ended.calls


def _last(ended: Ended) -> str:
    lines = [line for line in ended.said.replace("\r", "\n").splitlines() if line.strip()]
    return f"exit code {ended.code}: {lines[-1] if lines else ''}"


def _wrong_end(ended: Ended, kind: str) -> str:
    """Return what is wrong with the end of a command with a fault; "" if nothing."""
    if not KINDS[kind].error:
        return "" if ended.code == -9 else f"expected a kill, got {_last(ended)}"
    if kind == "memory":  # the interpreter may well end then, with whatever it can say
        return ""
    if ended.code < 0:
        return f"ended by signal {-ended.code}"
    if ended.code == cli.DEFECT or "Traceback" in ended.said:
        return f"no sentence explains it: {_last(ended)}"
    return ""


def points(calls: int, most: int) -> list[int]:
    """Return the calls that fail, from 1: all, or `most` evenly from the first to the last."""
    if calls == io_faults.ALLOCATIONS:  # most libraries begin with few, so ever larger steps
        return [int(i) for i in np.geomspace(1000, calls, most or 100)]
    if not most or calls <= most:
        return list(range(1, calls + 1))
    return sorted({int(i) for i in np.linspace(1, calls, most).round()})


def shares(calls: list[int], most: int) -> list[int]:
    """Return how many of each verb's calls to kill: alike, and `most` in all if there are as many.

    Args:
        calls: Calls of each verb.
        most: Kills over all verbs.
    """
    found = [0] * len(calls)
    for k, i in enumerate(sorted(range(len(calls)), key=calls.__getitem__)):
        found[i] = min(calls[i], -(-(most - sum(found)) // (len(calls) - k)))
    return found


def study(args: StudyArgs, console: Console) -> Iterator[Found]:
    """Try every verb and kind; yield what was found.

    Raises:
        ValueError: a verb fails by itself.
    """
    work = args.out / "inputs"
    preparing = io_faults.run(
        lambda: verbs.prepare(work, args.verbs), args.out / "none", args.out / "inputs.log"
    )
    if preparing.code:
        raise ValueError(f"the inputs cannot be made: {_last(preparing)}")
    trials = [Trial(name, work, args.out / name.replace(" ", "_")) for name in args.verbs]
    calls = [trial.count("kill") if "kill" in args.kinds else 0 for trial in trials]
    kills = shares(calls, args.kills)
    for name, trial, share in zip(args.verbs, trials, kills, strict=True):
        if trial.different:
            yield Found(name, "none", defects=[f"{name}: two runs differ in {trial.different}"])
        for kind in args.kinds:
            found = Found(name, kind, trial.count(kind))
            chosen = points(found.calls, share if kind == "kill" else args.points)
            chosen = [] if kind == "kill" and not share else chosen
            with Progress(console=console, transient=True) as bar:
                for at in bar.track(chosen, description=f"{name}, {kind}"):
                    trial.fail(kind, at, found)
            for defect in found.defects:
                console.print(defect, highlight=False, markup=False, soft_wrap=True)
            yield found


def table(results: list[Found]) -> Table:
    """Return the results as a table."""
    shown = Table("verb", "fault", "calls", "faults", "old", "new", "resumable", "defects")
    for one in results:
        counts = [str(one.states[name]) for name in STATES[:3]]
        shown.add_row(
            one.verb, one.kind, str(one.calls), str(one.faults), *counts, str(len(one.defects))
        )
    return shown


def main(argv: list[str] | None = None) -> int:
    """Run the study; exit code 1 if there is a defect."""
    args = harness.read(StudyArgs, argv, "hardening.io_fault_study")
    args.out.mkdir(parents=True, exist_ok=True)
    io_faults.preload(args.out.resolve())
    args = StudyArgs(**{**vars(args), "out": args.out.resolve()})
    os.environ["XDG_STATE_HOME"] = str(args.out / "state")
    for target, _ in VERBS_MODULES:
        importlib.import_module(target)
    console = Console()
    results = []
    for found in study(args, console):
        results.append(found)
        (args.out / "results.json").write_text(json.dumps([asdict(one) for one in results]))
    console.print(table(results))
    defects = sum(len(one.defects) for one in results)
    faults = sum(one.faults for one in results)
    console.print(f"{faults} faults, {defects} defects")
    return 1 if defects else 0


VERBS_MODULES = [cli.VERBS[name][0].split(":") for name in VERBS]
"""Imported before the forks, which then start at once."""

if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.hardening.io_fault_study:main", sys.argv[1:]))
