"""`vla engines`: builds, compares and times the engines of an exported policy.

Every timed call ends when its outputs are in the host's memory, copies included. The JSON says all
that is needed to judge it elsewhere: whoever owns a board runs the command once and sends the file.
"""

import importlib.metadata
import json
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from deploy.runtime import artefact as artefacts
from deploy.runtime import target_selection
from deploy.runtime.artefact import Artefact
from deploy.runtime.policy import DeployedPolicy, GraphRunner
from deploy.runtime.recording import RecordingRunner
from vla.contracts.config import validate_min
from vla.contracts.types import Observation
from vla.utils import arguments

WARMUP_CALLS = 50
"""Calls before the timed ones."""
PERCENTILES = (50, 95, 99)
"""Reported percentiles."""
REFERENCE = "onnxruntime"
"""Target that the others are compared with, if it is among them; the first one otherwise."""
DECISION = "decision"
"""Name of a whole decision as a robot needs it: units, tokens and memory included."""
USAGE = "usage: vla engines FOLDER [--targets NAME ...] [--calls N] [--out FILE]"


@dataclass(frozen=True, kw_only=True)
class EnginesArgs:
    """Build and time the engines of an exported policy on this machine."""

    targets: tuple[str, ...] = ("tensorrt",)
    """Inference targets; all of them are timed."""
    calls: int = 1000
    """Timed calls of each graph, and timed decisions."""
    threads: int = 1
    """CPU threads of each target."""
    out: Path | None = None
    """JSON file for the results, which are printed as well."""
    seed: int = 0
    """Seed of images and noise."""

    def __post_init__(self) -> None:
        validate_min(self, calls=10, threads=1, seed=0)
        if not self.targets:
            raise ValueError("targets: got none; name one or more with --targets")
        target_selection.check_graph_targets(self.targets)


def measure(
    artefact: Artefact, name: str, args: EnginesArgs
) -> tuple[dict[str, Any], RecordingRunner]:
    """Return the results of one target as JSON types, and the last call of each of its graphs.

    Raises:
        ValueError: it does not run here.
    """
    begin = time.perf_counter()
    runner: GraphRunner = target_selection.config(name, args.threads).open(artefact)
    recorder = RecordingRunner(runner)
    for split in (True, False):  # together they run every graph
        _episode(DeployedPolicy(artefact, recorder, split=split), args.seed)
    ready_s = time.perf_counter() - begin
    policy = DeployedPolicy(artefact, runner)
    obs, noise = _random_input(policy, 1, np.random.default_rng(args.seed))
    state = policy.initial_state(len(noise))

    def decide() -> Any:
        return policy.act(obs, state, noise)

    seconds = {DECISION: timed(decide, args.calls)}
    for graph, calls in recorder.calls.items():
        seconds[graph] = timed(partial(runner.run, graph, calls[-1][0]), args.calls)
    stats: Any = getattr(runner, "stats", dict)  # only targets that build engines have it
    return {"ready_s": ready_s, "seconds": seconds, "engines": stats()}, recorder


def differences(runner: GraphRunner, reference: RecordingRunner) -> dict[str, float]:
    """Return, by graph, the largest difference of an output from a reference's on its inputs."""
    largest = {}
    for graph, calls in reference.calls.items():
        inputs, expected = calls[-1]
        found = runner.run(graph, inputs)
        apart = (np.abs(np.subtract(found[name], expected[name], dtype=np.float64)).max(initial=0)
                 for name in expected)  # fmt: skip
        largest[graph] = float(max(apart))
    return largest


def host() -> dict[str, Any]:
    """Return what a reader elsewhere needs to know of this machine, as JSON types."""
    files = {"board": "/proc/device-tree/model", "jetson_linux": "/etc/nv_tegra_release"}
    commands = {"power_mode": ("nvpmodel", "-q"), "gpu": ("nvidia-smi", "-L")}
    facts: dict[str, Any] = {"system": platform.platform(), "python": platform.python_version()}
    for name, path in files.items():
        text = Path(path).read_text(errors="replace") if Path(path).is_file() else ""
        facts[name] = text.replace("\0", "").partition("\n")[0] or None
    for name, words in commands.items():
        facts[name] = _said(words)
    facts["packages"] = {}
    for package in ("mneme-vla", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt"):
        try:
            facts["packages"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts["packages"][package] = None
    return facts


def _said(words: tuple[str, ...]) -> str | None:
    """Return what a program of this machine prints; None if there is none or it fails."""
    if shutil.which(words[0]) is None:
        return None
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return percentiles of the seconds of a call that returns when it is done."""
    seconds = np.zeros(WARMUP_CALLS + calls)
    for i in range(len(seconds)):
        begin = time.perf_counter()
        call()
        seconds[i] = time.perf_counter() - begin
    values = np.percentile(seconds[WARMUP_CALLS:], PERCENTILES)
    return {f"p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}


def table(results: dict[str, dict[str, Any]], title: str) -> Table:
    """Return percentiles by target and graph."""
    sheet = Table(title=title)
    for column in ("target", "what"):
        sheet.add_column(column)
    for share in PERCENTILES:
        sheet.add_column(f"p{share}, ms", justify="right")
    for name, result in results.items():
        for what, values in result["seconds"].items():
            sheet.add_row(name, what, *(f"{1e3 * t:.3f}" for t in values.values()))
    return sheet


def _episode(policy: DeployedPolicy, seed: int) -> None:
    rng, state = np.random.default_rng(seed), policy.initial_state(policy.manifest.batch)
    for k in range(target_selection.TRIAL_DECISIONS):
        obs, noise = _random_input(policy, k, rng)
        _, state = policy.act(obs, state, noise)


def _random_input(
    policy: DeployedPolicy, decision: int, rng: np.random.Generator
) -> tuple[Observation, np.ndarray]:
    """Return a random observation and noise, of as many rows as the artefact's batch."""
    manifest, robot = policy.manifest, policy.robot
    camera, rows = robot.cameras[0], manifest.batch
    shape = (rows, len(robot.cameras), camera.height_px, camera.width_px, 3)
    task = manifest.instructions[0] if manifest.instructions else "go"
    obs = Observation(
        images=rng.integers(0, 256, shape, np.uint8), image_ok=np.ones(shape[:2], np.bool_),
        proprio=np.array([robot.home] * rows, np.float32), task=(task,) * rows,
        time_s=np.full(rows, decision * policy.n_action_steps / robot.control_hz),
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
        args.out.touch()  # fails before the work if it cannot be written
    measured = {name: measure(artefact, name, args) for name in args.targets}
    reference = REFERENCE if REFERENCE in measured else args.targets[0]
    results = {}
    for name, (result, recorder) in measured.items():
        apart = differences(recorder.runner, measured[reference][1])
        results[name] = {**result, "largest_difference": apart}
    report = {
        "folder": str(artefact.folder), "host": host(), "calls": args.calls,
        "precision": artefact.manifest.precision, "batch": artefact.manifest.batch,
        "synchronized": True, "reference": reference, "targets": results,
    }  # fmt: skip
    title = (
        f"{artefact.folder}: batch {artefact.manifest.batch}, {args.calls:,} calls after "
        f"{WARMUP_CALLS}, each until its outputs are on the host"
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(results, title))
    for name, result in results.items():
        built = [graph for graph, stats in result["engines"].items() if stats["built"]]
        from_cache = len(result["engines"]) - len(built)
        engines = f"; built {', '.join(built) or 'none'}, {from_cache} from the cache"
        ready = f"{name}: ready in {result['ready_s']:.1f} s"
        console.print(f"{ready}{engines if result['engines'] else ''}", markup=False)
        if name != reference:
            by_graph = result["largest_difference"].items()
            said = ", ".join(f"{graph} {largest:.1e}" for graph, largest in by_graph)
            console.print(f"{name}: largest difference from {reference}: {said}", markup=False)
    print(json.dumps(report))
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0
