"""`vla engines`: builds the engines of an exported policy through their cache, and times them.

Every call ends when its outputs are in the host's memory: the stream has been waited for, and
copies are part of the time.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from deploy import artefact as artefacts
from deploy import order
from deploy.artefact import Artefact
from deploy.policy import DeployedPolicy, Engine
from vla import arguments
from vla.contracts.config import check_least
from vla.contracts.types import Observation

WARM = 50
"""Calls before the clock counts."""
SHARES = (50, 95, 99)
"""Percentiles."""
DECISION = "decision"
"""A whole one as an arm asks for it: units, instruction and memory included."""
USAGE = "usage: vla engines FOLDER [--targets NAME ...] [--calls N] [--out FILE]"


@dataclass(frozen=True, kw_only=True)
class EnginesArgs:
    """Build and time the engines of an exported policy on this machine."""

    targets: tuple[str, ...] = ("tensorrt",)
    """Who runs the graphs; all of them are timed."""
    calls: int = 1000
    """Timed calls of each graph, and timed decisions."""
    threads: int = 1
    """CPU threads of each."""
    out: Path | None = None
    """File for the figures (JSON), which are printed as well."""
    seed: int = 0
    """Seed of images and noise."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, calls=10, threads=1, seed=0)
        if not self.targets:
            raise ValueError("targets: got none; name one or more with --targets")
        order.check_graphs(self.targets)


class Recorder:
    """An engine that remembers what each graph was last given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: dict[str, dict[str, np.ndarray]] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        self.seen[graph] = {name: np.array(value) for name, value in inputs.items()}
        return self.engine.run(graph, inputs)


def measure(artefact: Artefact, name: str, args: EnginesArgs) -> dict[str, Any]:
    """Return the figures of one target as JSON types.

    Raises:
        ValueError: it does not run here.
    """
    begin = time.perf_counter()
    engine: Engine = order.config(name, args.threads).open(artefact)
    recorder = Recorder(engine)
    for split in (True, False):  # between them, every graph
        _episode(DeployedPolicy(artefact, recorder, split=split), args.seed)
    ready_s = time.perf_counter() - begin
    policy = DeployedPolicy(artefact, engine)
    obs, noise = _seen(policy, 1, np.random.default_rng(args.seed))
    state = policy.initial_state(len(noise))

    def decide() -> Any:
        return policy.act(obs, state, noise)

    seconds = {DECISION: timed(decide, args.calls)}
    for graph, inputs in recorder.seen.items():
        seconds[graph] = timed(partial(engine.run, graph, inputs), args.calls)
    told: Any = getattr(engine, "told", dict)  # only targets that build have something to tell
    return {"ready_s": ready_s, "seconds": seconds, "engines": told()}


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return percentiles of the seconds of a call that returns when it is done."""
    found = np.zeros(WARM + calls)
    for i in range(len(found)):
        begin = time.perf_counter()
        call()
        found[i] = time.perf_counter() - begin
    values = np.percentile(found[WARM:], SHARES)
    return {f"p{share}": float(value) for share, value in zip(SHARES, values, strict=True)}


def table(found: dict[str, dict[str, Any]], title: str) -> Table:
    """Return percentiles by target and graph."""
    sheet = Table(title=title)
    for column in ("target", "what"):
        sheet.add_column(column)
    for share in SHARES:
        sheet.add_column(f"p{share}, ms", justify="right")
    for name, one in found.items():
        for what, values in one["seconds"].items():
            sheet.add_row(name, what, *(f"{1e3 * t:.3f}" for t in values.values()))
    return sheet


def _episode(policy: DeployedPolicy, seed: int) -> None:
    rng, state = np.random.default_rng(seed), policy.initial_state(policy.manifest.batch)
    for k in range(order.REHEARSED):
        obs, noise = _seen(policy, k, rng)
        _, state = policy.act(obs, state, noise)


def _seen(
    policy: DeployedPolicy, decision: int, rng: np.random.Generator
) -> tuple[Observation, np.ndarray]:
    """Return a random observation and noise, a row for each of the artefact's batch."""
    manifest, robot = policy.manifest, policy.robot
    camera, rows = robot.cameras[0], manifest.batch
    shape = (rows, len(robot.cameras), camera.height_px, camera.width_px, 3)
    task = manifest.instructions[0] if manifest.instructions else "go"
    obs = Observation(
        images=rng.integers(0, 256, shape, np.uint8), image_ok=np.ones(shape[:2], np.bool_),
        proprio=np.array([robot.home] * rows, np.float32), task=(task,) * rows,
        time_s=np.full(rows, decision * policy.execute / robot.control_hz),
    )  # fmt: skip
    return obs, rng.standard_normal((rows, *policy.noise_shape), np.float32)


def main(argv: list[str]) -> int:
    """Run `vla engines FOLDER`; return the exit code.

    Raises:
        ValueError: the folder is no exported policy, or a target does not run here.
    """
    if not argv or argv[0].startswith("-"):
        print(USAGE)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(EnginesArgs, argv[1:], "vla engines FOLDER")
    artefact = artefacts.read(Path(argv[0]))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.touch()  # before the work: it may not be possible
    found = {name: measure(artefact, name, args) for name in args.targets}
    told = {
        "folder": str(artefact.folder), "machine": platform.machine(), "calls": args.calls,
        "batch": artefact.manifest.batch, "synchronised": True, "targets": found,
    }  # fmt: skip
    title = (
        f"{artefact.folder}: batch {artefact.manifest.batch}, {args.calls:,} calls after {WARM}, "
        "each until its outputs are on the host"
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(found, title))
    for name, one in found.items():
        console.print(_readiness(name, one), markup=False)
    print(json.dumps(told))
    if args.out is not None:
        args.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def _readiness(name: str, found: dict[str, Any]) -> str:
    """Return how long a target took to be ready, and what it built."""
    built = [graph for graph, one in found["engines"].items() if one["built"]]
    from_cache = len(found["engines"]) - len(built)
    kept = f"; built {', '.join(built) or 'none'}, {from_cache} from the cache"
    return f"{name}: ready in {found['ready_s']:.1f} s{kept if found['engines'] else ''}"
