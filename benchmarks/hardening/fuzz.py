"""Damages small good inputs at random and reads them, watched by another process.

`python -m benchmarks.hardening.fuzz --inputs 100000 --out FOLDER`

A reader may accept an input or refuse it with one sentence. Everything else is a defect: an error
that `vla` would call a defect of the program, a crash, more than 30 s or 2 GB, or a changed input.
The corpus, `benchmarks/hardening/corpus/READER/*.json`, is read first; `--grow` adds each new kind
of defect to it. Exit code 1 if there is a defect.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import harness
from benchmarks.hardening import mutations, readers
from benchmarks.hardening.mutations import Op
from benchmarks.hardening.readers import READERS
from vla import cli
from vla.contracts.config import validate_min

CORPUS = Path(__file__).parent / "corpus"
LONGEST_S, MOST_BYTES = 30.0, 2 << 30
POLL_S = 0.1
BATCH = 500
"""Inputs of a worker, which then ends: what leaks in one does not last."""
ROOT = Path(__file__).parents[2]
WORKER = "--read"
"""First word of a process that reads; its job, as JSON, and the folder of everything follow."""


@dataclass(frozen=True, kw_only=True)
class FuzzArgs:
    """Damage inputs at random and read them."""

    readers: tuple[str, ...] = tuple(READERS)
    """Readers to try."""
    inputs: int = 1000
    """Inputs over all readers, besides the corpus."""
    seed: int = 0
    """Seed of the damage."""
    workers: int = 2
    """Processes that read."""
    grow: bool = False
    """Add each new kind of defect to the corpus."""
    out: Path = Path("runs/fuzz")
    """Folder of everything; emptied first."""

    def __post_init__(self) -> None:
        validate_min(self, inputs=0, seed=0, workers=1)
        for name in self.readers:
            if name not in READERS:
                raise ValueError(f"readers: got {name!r}, expected some of {', '.join(READERS)}")


# --- the process that reads ------------------------------------------------------------------


def work(job: dict[str, Any], out: Path) -> int:
    """Read the inputs of a job; print a line of JSON before and after each."""
    reader, base = READERS[job["reader"]], out / "base" / job["reader"]
    place = out / f"work-{os.getpid()}"
    os.environ["XDG_STATE_HOME"] = str(place / "state")
    torch.set_num_threads(1)
    said, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)  # what a reader prints is not ours
    os.dup2(devnull, 2)
    try:
        with open(said, "w", buffering=1) as lines:
            for name, ops in inputs(job, base):
                print(json.dumps({"name": name, "ops": ops}), file=lines)
                print(json.dumps(read(reader, base, place, ops)), file=lines)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def inputs(job: dict[str, Any], base: Path) -> Iterator[tuple[str, list[Op]]]:
    """Yield name and damage of each input of a job."""
    if "files" in job:
        for file in job["files"]:
            yield Path(file).name, json.loads(Path(file).read_text())["ops"]
        return
    for number in range(job["first"], job["first"] + job["count"]):
        rng = np.random.default_rng([job["seed"], zlib.crc32(job["reader"].encode()), number])
        yield str(number), mutations.draw(rng, base)


def read(reader: readers.Reader, base: Path, place: Path, ops: list[Op]) -> dict[str, Any]:
    """Damage a copy of the good input and read it; return what became of it."""
    shutil.rmtree(place, ignore_errors=True)
    folder, out = place / "in", place / "out"
    shutil.copytree(base, folder)
    mutations.apply(folder, ops)
    if reader.rehash:
        with contextlib.suppress(Exception):  # a damaged manifest stays as it is
            readers.rehash(folder)
    before = digest(folder)
    result: dict[str, Any] = {"end": "accepted"}
    try:
        reader.read(folder, out)
    except BaseException as error:  # noqa: BLE001  what escapes a reader is what is sought
        result = judge(error, ops, folder, out)
    if digest(folder) != before:
        result = {"end": "defect", "why": "the input was changed", "kind": "changed"}
    peak = peak_bytes()  # each call begins a new peak
    if peak > MOST_BYTES:
        result = {"end": "defect", "why": f"{peak / 1e9:.1f} GB", "kind": "memory"}
    return result


def judge(error: BaseException, ops: list[Op], folder: Path, out: Path) -> dict[str, Any]:
    """Return what an error is: a refusal in one sentence, or a defect."""
    sentence = None if isinstance(error, MemoryError) else cli.explain(error)
    if sentence is not None and isinstance(error, Exception):
        places = [str(folder), str(out), *(Path(op["file"]).name for op in ops)]
        named = any(place in sentence for place in places)
        return {"end": "refused", "named": named, "why": sentence[:300]}
    ours = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(str(ROOT)) and "site-packages" not in frame.filename
    ]  # fmt: skip
    last = ours[-1]
    kind = f"{type(error).__name__} at {Path(last.filename).relative_to(ROOT)} {last.name}"
    text = " ".join(str(error).split())[:200]
    return {"end": "defect", "why": f"{kind}, line {last.lineno}: {text}", "kind": kind}


def digest(folder: Path) -> str:
    """Return a hash of the names and contents of all files."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        total.update(str(path.relative_to(folder)).encode())
        if path.is_file() and not path.is_symlink():
            total.update(path.read_bytes())
    return total.hexdigest()


def peak_bytes() -> int:
    """Return the largest resident size of this process since the last call, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    with contextlib.suppress(OSError):  # refused: then the peak is that of all inputs so far
        Path("/proc/self/clear_refs").write_text("5")
    return peak


# --- the process that watches ----------------------------------------------------------------


@dataclass
class Tally:
    """What became of the inputs of one reader."""

    ends: Counter[str] = field(default_factory=Counter)
    nameless: int = 0
    """Refusals that do not name the file."""
    longest_s: float = 0.0
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The first input of each kind of defect."""
    count: Counter[str] = field(default_factory=Counter)
    nameless_why: dict[str, Any] = field(default_factory=dict)


class Watched:
    """A process that reads a job's inputs, under limits of time and memory."""

    def __init__(self, job: dict[str, Any], out: Path) -> None:
        self.job, self.done, self.out = job, 0, out
        self.asked: dict[str, Any] | None = None
        self.start()

    def start(self) -> None:
        """Start the process at the first input that is not done."""
        job = dict(self.job)
        if "files" in job:
            job["files"] = job["files"][self.done :]
        else:
            job |= {"first": job["first"] + self.done, "count": job["count"] - self.done}
        words = [sys.executable, "-m", "benchmarks.hardening.fuzz", WORKER, json.dumps(job)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*words, str(self.out)], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.buffer, self.since = b"", time.monotonic()

    def poll(self, tally: Tally) -> int:
        """Take what was said, end what takes too long; return the number of inputs done since."""
        stream: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        before = self.done
        ready, _, _ = select.select([stream], [], [], 0)
        data = os.read(stream.fileno(), 1 << 20) if ready else b""
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self._take(json.loads(line), tally)
        why = self._beyond()
        if why:
            self.process.kill()
        if why or (ready and not data):
            code = self.process.wait()
            if self.asked is not None:
                why = why or f"ended with code {code}"
                self._take({"end": "defect", "why": why, "kind": why.split(" at ")[0]}, tally)
            elif code and not why:
                error = self.process.stderr.read().decode() if self.process.stderr else ""
                raise ValueError(f"a worker of {self.job['reader']} failed: {error[-2000:]}")
            shutil.rmtree(self.out / f"work-{self.process.pid}", ignore_errors=True)
            if not self.is_over:
                self.start()
        return self.done - before

    @property
    def is_over(self) -> bool:
        """Whether every input was read."""
        return self.done >= (len(self.job["files"]) if "files" in self.job else self.job["count"])

    def _beyond(self) -> str:
        if self.asked is None:
            return ""
        if time.monotonic() - self.since > LONGEST_S:
            return f"more than {LONGEST_S:g} s"
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except OSError:
            return ""
        return "more than 2 GB" if pages * os.sysconf("SC_PAGE_SIZE") > 1.2 * MOST_BYTES else ""

    def _take(self, line: dict[str, Any], tally: Tally) -> None:
        now = time.monotonic()
        if "ops" in line:
            self.asked, self.since = line, now
            return
        assert self.asked is not None
        self.done += 1
        tally.ends[line["end"]] += 1
        tally.longest_s = max(tally.longest_s, now - self.since)
        if line["end"] == "defect":
            tally.count[line["kind"]] += 1
            tally.kinds.setdefault(line["kind"], {"why": line["why"], "ops": self.asked["ops"]})
        elif line.get("named") is False:
            tally.nameless += 1
            tally.nameless_why.setdefault(line["why"], self.asked["ops"])
        self.asked = None


def jobs(args: FuzzArgs) -> list[dict[str, Any]]:
    """Return the corpus, then the random inputs, in batches."""
    found: list[dict[str, Any]] = []
    for name in args.readers:
        files = sorted(map(str, (CORPUS / name).glob("*.json")))
        if files:
            found.append({"reader": name, "files": files})
    total = sum(READERS[name].share for name in args.readers)
    for name in args.readers:
        count = -(-args.inputs * READERS[name].share // total)
        found += [
            {"reader": name, "seed": args.seed, "first": i, "count": min(BATCH, count - i)}
            for i in range(0, count, BATCH)
        ]
    return found


def save(args: FuzzArgs, tallies: dict[str, Tally]) -> None:
    """Write the results, and the corpus if it is to grow."""
    rows = {
        name: {
            "ends": dict(t.ends), "nameless": t.nameless, "longest_s": round(t.longest_s, 2),
            "defects": dict(t.count), "first": t.kinds, "nameless_first": t.nameless_why,
        }
        for name, t in tallies.items()
    }  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(rows, indent=1))
    if not args.grow:
        return
    for name, tally in tallies.items():
        for kind, first in tally.kinds.items():
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            file = CORPUS / name / f"{hashlib.sha256(kind.encode()).hexdigest()[:12]}.json"
            file.write_text(json.dumps(first, indent=1) + "\n")


def table(tallies: dict[str, Tally]) -> Table:
    """Return the results as a table."""
    shown = Table(
        "reader", "inputs", "accepted", "refused", "without the file", "defects", "longest"
    )
    for name, t in tallies.items():
        shown.add_row(
            name, f"{t.ends.total():,}", f"{t.ends['accepted']:,}", f"{t.ends['refused']:,}",
            f"{t.nameless:,}", f"{t.ends['defect']:,}", f"{t.longest_s:.1f} s",
        )  # fmt: skip
    return shown


def main(argv: list[str] | None = None) -> int:
    """Run the fuzzer; return 1 if there is a defect."""
    if argv and argv[0] == WORKER:
        return work(json.loads(argv[1]), Path(argv[2]))
    args = harness.read(FuzzArgs, argv, "hardening.fuzz")
    shutil.rmtree(args.out, ignore_errors=True)
    console = Console(width=140)
    for name in args.readers:
        base = (args.out / "base" / name).absolute()
        base.mkdir(parents=True)
        READERS[name].make(base)
    tallies = {name: Tally() for name in args.readers}
    running: list[Watched] = []
    waiting = jobs(args)
    total = sum(len(j["files"]) if "files" in j else j["count"] for j in waiting)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        line = progress.add_task("inputs", total=total)
        while waiting or running:
            while waiting and len(running) < args.workers:
                running.append(Watched(waiting.pop(0), args.out.absolute()))
            time.sleep(POLL_S)
            for each in running:
                progress.advance(line, each.poll(tallies[each.job["reader"]]))
            running = [each for each in running if not each.is_over or each.process.poll() is None]
            save(args, tallies)
    console.print(table(tallies))
    for name, tally in tallies.items():
        for kind, first in tally.kinds.items():
            console.print(f"{name}: {tally.count[kind]} times {first['why']}", markup=False)
    return 1 if any(t.ends["defect"] for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.hardening.fuzz:main", sys.argv[1:]))
