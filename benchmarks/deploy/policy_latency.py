"""`vla bench policy`: the time of one decision on one core, of every target in the same run.

Targets take turns call by call, so that other load on the machine affects all of them alike.
Everything runs on the CPU, where a call has ended when it returns.
"""

import dataclasses
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import harness, peak_memory
from deploy.commands import export
from deploy.export import graph
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Precision
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Observation, PolicyState
from vla.policies import lerobot_diffusion
from vla.policies.vla import VLAPolicy
from vla.utils import arguments, pages

YOUNG = 10
"""Decision at which an episode counts as young."""
WARM = 50
"""Calls before the clock counts."""
EAGER, WHOLE, SPLIT = "PyTorch", "ONNX Runtime", "ONNX Runtime, stage by stage"
INT8 = "ONNX Runtime, int8"
CALIBRATION = 60
"""Random observations for the calibration of int8: only the time counts here."""
SHARES = (50, 95, 99)
"""Percentiles."""
QUANTILES = np.linspace(0, 1, 101)
"""Shares of decisions in the plot."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Time the decisions of a checkpoint, batch 1, on one core, by every target."""

    checkpoint: Path = Path("runs/demo/bank")
    """Checkpoint: folder of `vla train`."""
    exported: Path | None = None
    """Exported policy of that checkpoint; if not given, a temporary one is exported."""
    calls: int = 1000
    """Timed decisions of each target."""
    decisions: int = 10_000
    """Length of the episode that shows whether a decision takes longer with it; 0 for none."""
    pairs: int = 500
    """Interleaved timings of a young and of an old memory."""
    lerobot: bool = True
    """Whether to time LeRobot's DiffusionPolicy, next to ours widened to as many parameters."""
    out: Path = Path("runs/bench-policy")
    """Folder of latency.json and latency.svg."""
    seed: int = 0
    """Seed of images and noise."""

    def __post_init__(self) -> None:
        validate_min(self, calls=10, decisions=0, pairs=1, seed=0)
        if 0 < self.decisions <= YOUNG:
            raise ValueError(f"decisions must be more than {YOUNG}, or 0, got {self.decisions}")


def observe(
    robot: RobotSpec, decision: int, period_s: float, rng: np.random.Generator
) -> Observation:
    """Return a random observation, batch 1, at a decision of an episode."""
    camera = robot.cameras[0]
    shape = (1, len(robot.cameras), camera.height_px, camera.width_px, 3)
    return Observation(
        images=rng.integers(0, 256, shape, np.uint8),
        image_ok=np.ones(shape[:2], np.bool_),
        proprio=rng.uniform(robot.low, robot.high, (1, len(robot.channels))).astype(np.float32),
        task=("press the button that has the colour the lamp showed",),
        time_s=np.array([decision * period_s]),
    )


def decide_s(
    policy: ArmPolicy, obs: Observation, state: PolicyState, noise: np.ndarray
) -> tuple[float, PolicyState]:
    """Return the seconds of one decision, and the new state."""
    begin = time.perf_counter()
    _, state = policy.act(obs, state, noise)
    return time.perf_counter() - begin, state


class Driver:
    """Lets a policy decide repeatedly in one episode."""

    def __init__(self, policy: ArmPolicy) -> None:
        self.policy = policy
        self.state = policy.initial_state(1)

    def __call__(self, obs: Observation, noise: np.ndarray) -> float:
        """Decide; return the seconds it took."""
        seconds, self.state = decide_s(self.policy, obs, self.state, noise)
        return seconds


def exported(
    policy: VLAPolicy, origin: Provenance, folder: Path, *, split: bool = False,
    precision: Precision = "fp32",
) -> DeployedPolicy:  # fmt: skip
    """Return an exported policy, which runs without torch; export it first if it is missing."""
    if not folder.exists():
        rng, period_s = np.random.default_rng(0), policy.n_action_steps / policy.robot.control_hz
        observations = [observe(policy.robot, k, period_s, rng) for k in range(CALIBRATION)]
        export.export(policy, origin, folder, precision=precision, calibration=observations)
    artefact = artefacts.read(folder)
    artefact.check_origin(origin.task, origin.step)
    return DeployedPolicy(artefact, onnxruntime.Config().open(artefact), split=split)


def lerobots(policy: VLAPolicy) -> lerobot_diffusion.Diffusion:
    """Return LeRobot's DiffusionPolicy with random weights and the cameras, images, chunk and
    denoising steps of ours; even the smallest has ten times our parameters, most in a ResNet.
    """
    config = lerobot_diffusion.Config(
        chunk_size=policy.config.chunk_size, n_action_steps=policy.config.n_action_steps,
        cameras=policy.config.cameras,
        image_px=policy.config.backbone.image_px, num_inference_steps=policy.noise_shape[0] - 1,
        down_dims=(64, 128),  # the smallest that LeRobot's configuration allows
    )  # fmt: skip
    return config.build(policy.robot, policy.statistics, policy.text.tokenizer).eval()


def widened(policy: VLAPolicy, parameters: int) -> VLAPolicy:
    """Return a policy with random weights, its denoiser wide enough for that many parameters."""
    config, width = policy.config, 64
    while True:
        head: Any = config.head  # every head has a width, but no protocol declares it
        whole = dataclasses.replace(
            config, head=dataclasses.replace(head, width=width, ft_denoising_steps=0)
        )
        batched = whole.build(policy.robot, policy.statistics, policy.text.tokenizer)
        count = sum(p.numel() for p in batched.parameters())
        if count >= 0.97 * parameters:
            return batched.eval()
        width = max(width + 32, int(width * (parameters / count) ** 0.4))


def race(
    sides: dict[str, Callable[[Observation, np.ndarray], float]], policy: VLAPolicy,
    args: BenchArgs,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the seconds f64 [calls] of each side; they take turns."""
    rng = np.random.default_rng(args.seed)
    period_s = policy.n_action_steps / policy.robot.control_hz
    times: dict[str, list[float]] = {name: [] for name in sides}
    for k in track(range(WARM + args.calls), "taking turns", transient=True):
        obs = observe(policy.robot, k, period_s, rng)
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        order = list(sides)
        for name in order[k % len(order) :] + order[: k % len(order)]:
            times[name].append(sides[name](obs, noise))
    return {name: np.array(seconds[WARM:]) for name, seconds in times.items()}


@torch.no_grad()
def stages(policy: VLAPolicy, split: DeployedPolicy, args: BenchArgs) -> dict[str, np.ndarray]:
    """Return the seconds f64 [calls, 2] of each stage: by PyTorch, by ONNX Runtime."""
    traced = graph.trace(policy, 1)
    seconds = {}
    for name in artefacts.STAGES:
        one, ports = traced[name], split.manifest.graphs[name].inputs
        tensors = list(one.inputs.values())
        arrays = {port.name: one.inputs[port.name].numpy() for port in ports}
        rows = []
        for _ in range(WARM + args.calls):
            begin = time.perf_counter()
            one.function(*tensors)
            middle = time.perf_counter()
            split.runner.run(name, arrays)
            rows.append((middle - begin, time.perf_counter() - middle))
        seconds[name] = np.array(rows[WARM:])
    return seconds


def growth(policy: VLAPolicy, args: BenchArgs) -> np.ndarray:
    """Return seconds f64 [pairs, 2] of decisions with the memory of a young and an old episode."""
    rng = np.random.default_rng(args.seed)
    period_s = policy.n_action_steps / policy.robot.control_hz
    state = young = policy.initial_state(1)
    for k in track(range(args.decisions), "one long episode", transient=True):
        young = state if k == YOUNG else young
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        _, state = decide_s(policy, observe(policy.robot, k, period_s, rng), state, noise)
    pairs = np.zeros((args.pairs, 2))
    for i in range(args.pairs):
        both = [observe(policy.robot, k, period_s, rng) for k in (YOUNG, args.decisions)]
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        for j in (i % 2, 1 - i % 2):  # whichever goes first warms the cache for the other
            pairs[i, j], _ = decide_s(policy, both[j], (young, state)[j], noise)
    return pairs


def measure(args: BenchArgs, console: Console) -> dict[str, Any]:
    """Run everything and print the tables; return the results as JSON types."""
    policy, origin = checkpoint.load_vla(args.checkpoint, "bench policy")
    title = f"{args.checkpoint}: one decision, batch 1, one core"
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        exported_folder = args.exported or folder / "own"
        split = exported(policy, origin, exported_folder, split=True)
        sides: dict[str, Callable[[Observation, np.ndarray], float]] = {
            EAGER: Driver(policy),
            WHOLE: Driver(exported(policy, origin, exported_folder)),
            INT8: Driver(exported(policy, origin, folder / "int8", precision="int8")),
            SPLIT: Driver(split),
        }
        if args.lerobot and importlib.util.find_spec("lerobot"):
            lerobot = lerobots(policy)
            parameters = sum(p.numel() for p in lerobot.parameters())
            wide = widened(policy, parameters)
            size = f"{parameters / 1e6:.1f} M"
            sides |= {
                f"{EAGER}, {size}": Driver(wide),
                f"{WHOLE}, {size}": Driver(exported(wide, origin, folder / "wide")),
                f"{INT8}, {size}": Driver(
                    exported(wide, origin, folder / "wide_int8", precision="int8")
                ),
                f"LeRobot, {size}": Driver(lerobot),
            }
        times = race(sides, policy, args)
        console.print(latency_table(times, title))
        parts = stages(policy, split, args)
        console.print(stage_table(parts))
        places = {EAGER: args.checkpoint, WHOLE: exported_folder, INT8: folder / "int8"}
        results["peak_mb"] = {name: peak_memory.peak_mb(place) for name, place in places.items()}
    console.print(
        "peak memory of a process that decides: "
        + ", ".join(f"{name} {peak:.0f} MB" for name, peak in results["peak_mb"].items())
    )
    results["seconds"] = {n: _percentiles(t) for n, t in times.items()}
    results["quantiles"] = {n: np.quantile(t, QUANTILES).tolist() for n, t in times.items()}
    results["stages"] = {n: [_percentiles(c) for c in t.T] for n, t in parts.items()}
    if args.decisions:
        pairs = np.median(growth(policy, args), axis=0)
        results["growth"] = float(pairs[1] / pairs[0])
        console.print(
            f"decision {args.decisions:,} takes {results['growth']:.3f} of decision {YOUNG} "
            "(PyTorch; a memory that does not grow: 0.95 to 1.05)"
        )
    _write(args.out, title, results, times)
    console.print(f"results and plot: {args.out}")
    return results


def latency_table(times: dict[str, np.ndarray], title: str) -> Table:
    """Return percentiles of each side, and their ratio to the first side's."""
    columns = ("target", *(f"p{share}, ms" for share in SHARES), "p99 / p50", f"p50 / {EAGER}")
    eager, rows = np.median(times[EAGER]), []
    for name, seconds in times.items():
        low, *rest = np.percentile(seconds, SHARES)
        rows.append((
            name, *(f"{1e3 * t:.2f}" for t in (low, *rest)), f"{rest[-1] / low:.2f}",
            f"{low / eager:.2f}",
        ))  # fmt: skip
    return harness.table(title, columns, rows)


def stage_table(parts: dict[str, np.ndarray]) -> Table:
    """Return the medians of each stage."""
    return harness.table(
        "one run of each stage, median", ("stage", f"{EAGER}, ms", f"{WHOLE}, ms"),
        [
            (name, *(f"{1e3 * t:.3f}" for t in np.median(seconds, axis=0)))
            for name, seconds in parts.items()
        ],
    )  # fmt: skip


def _percentiles(seconds: np.ndarray) -> dict[str, float]:
    percentiles = np.percentile(seconds, SHARES)
    return {f"p{share}": float(t) for share, t in zip(SHARES, percentiles, strict=True)}


def _write(folder: Path, title: str, results: dict[str, Any], times: dict[str, np.ndarray]) -> None:
    """Write the results, and a plot of the share of decisions within a time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latency.json").write_text(json.dumps(results, indent=1) + "\n")
    series = [
        [(1e3 * t, float(share)) for share, t in zip(QUANTILES, quantiles, strict=True)]
        for quantiles in results["quantiles"].values()
    ]
    drawing = harness.plot(series, x="ms", y="share decided within", y_range=(0.0, 1.0))
    (folder / "latency.svg").write_text(drawing)
    head = ["target", *(f"p{share}, ms" for share in SHARES)]
    rows = [
        [name, *(f"{1e3 * t:.2f}" for t in np.percentile(quantiles, SHARES))]
        for name, quantiles in times.items()
    ]
    page = pages.render(
        "vla/utils/tables.html.j2", title=title, about="", tables=[("", head, rows)],
        numbers=range(1, len(head)), drawing=drawing, names=list(times),
        caption="Targets took turns call by call, on the CPU; a call ends as it returns.",
    )  # fmt: skip
    (folder / "latency.html").write_text(page)


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench policy")
    torch.set_num_threads(1)
    measure(args, Console(highlight=False))
    return 0
