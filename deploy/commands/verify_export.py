"""`vla verify-export`: does an exported policy act as its checkpoint does?

Both get the same recorded observations and noise. Each stage gets the inputs of PyTorch's stage, so
a difference belongs to the stage; in one long episode each keeps its own memory; then both play the
same episodes in simulation.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy.export import graph, recorded
from deploy.reward_model import verify as reward_model_verify
from deploy.runtime import artefact as artefacts
from deploy.runtime import target_selection
from deploy.runtime.artefact import Artefact
from deploy.runtime.policy import DeployedPolicy, GraphRunner
from deploy.verify import difference
from deploy.verify.difference import Difference, between, cosine, worst_of
from vla import checkpoint
from vla.contracts.config import validate_min
from vla.contracts.types import Prefix
from vla.data.store import EpisodeStore
from vla.policies.vla import VLAPolicy
from vla.utils import arguments
from vla.utils import paired as pairs

BUDGET = 1e-4
"""Largest difference of an action in FP32, as a share of its joint's range."""
MARGIN = 0.05
"""Success that may be lost in closed loop."""


@dataclass(frozen=True, kw_only=True)
class VerifyExportArgs:
    """Compare an exported policy with its checkpoint."""

    reference_checkpoint: Path
    """The checkpoint it was exported from."""
    dataset: Path
    """Recorded observations: a data set of its task."""
    decisions: int = 2000
    """Length of the episode in which each keeps its own memory."""
    stages: int = 100
    """Decisions at which every stage is compared."""
    episodes: int = 200
    """Episodes of the closed loop in simulation; 0 for none."""
    targets: tuple[str, ...] = target_selection.DEFAULT
    """Inference targets in order of preference; the first that runs the policy here is compared."""
    seed: int = 3000
    """Seed of those episodes, and of the noise."""

    def __post_init__(self) -> None:
        validate_min(self, decisions=1, stages=1, episodes=0, seed=0)
        target_selection.check_graph_targets(self.targets)
        same = np.ones(self.episodes, np.bool_)
        if self.episodes and not paired(same, same).within_margin:
            raise ValueError(
                f"episodes: got {self.episodes}, too few to tell a loss of {100 * MARGIN:.0f} "
                "points even if all end alike; give 38 or more, or 0 for no closed loop"
            )


@dataclass(frozen=True, kw_only=True)
class PolicyComparison:
    """Differences on recorded observations."""

    stages: dict[str, Difference]
    """By stage, in the stage's own units."""
    action: float
    """Largest difference of an action in the long episode, as a share of its joint's range."""
    cosine: float
    """Lowest cosine of two chunks."""
    parted: int
    """Decisions after which the memories differed."""
    decisions: int
    """Length of the episode."""


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Success on the same episodes."""

    torch: float
    """Success rate of the checkpoint."""
    exported: float
    """Success rate of the exported policy."""
    low: float
    """Lower 95 % bound of the paired difference."""
    episodes: int
    """Number of episodes."""

    @property
    def within_margin(self) -> bool:
        """Whether the loss is within the margin."""
        return self.low > -MARGIN


def compare(
    policy: VLAPolicy, artefact: Artefact, runner: GraphRunner, store: EpisodeStore,
    args: VerifyExportArgs,
) -> PolicyComparison:  # fmt: skip
    """Return the differences of an exported policy and its checkpoint on recorded observations."""
    exported = DeployedPolicy(artefact, runner)
    rng = np.random.default_rng(args.seed)
    extent = np.array(policy.robot.high, np.float32) - np.array(policy.robot.low, np.float32)
    traced = graph.trace(policy, 1)
    at = set(np.linspace(0, args.decisions - 1, args.stages).astype(int).tolist())
    stages: dict[str, list[Difference]] = {}
    worst, cosines, parted = 0.0, [], 0
    torch_state, state = policy.initial_state(1), exported.initial_state(1)
    expected = np.tile(np.array(policy.robot.home, np.float32), (1, policy.config.chunk_size, 1))
    observations = recorded.observations(store, policy.robot.control_hz, args.decisions)
    for i, obs in enumerate(track(observations, "comparing", total=args.decisions, transient=True)):
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        if i in at:
            inputs = exported.inputs(obs, state, noise)
            for name, gap in _stages(traced, runner, artefact, inputs, exported).items():
                stages.setdefault(name, []).append(gap)
        prefix = _prefix(policy, expected, i)
        chunk, torch_state = policy.act(obs, torch_state, noise, prefix)
        other, state = exported.act(obs, state, noise, prefix)
        expected, actual = chunk.values.numpy(), np.asarray(other.values)
        worst = float(np.maximum(worst, np.abs((expected - actual) / extent).max()))  # NaN stays
        cosines.append(cosine(expected, actual))
        parted += not difference.alike(torch_state, state)
    return PolicyComparison(
        stages={n: worst_of(f) for n, f in stages.items()},
        action=worst, cosine=float(np.min(cosines)), parted=parted, decisions=args.decisions,
    )  # fmt: skip


def _prefix(policy: VLAPolicy, values: np.ndarray, decision: int) -> Prefix | None:
    """Return the last chunk as a prefix of each length that the policy continues, in turn."""
    if not policy.max_prefix_len:
        return None
    mask = np.arange(policy.config.chunk_size)[None] < decision % (policy.max_prefix_len + 1)
    return Prefix(values=values, mask=mask.astype(np.float32))


def _stages(
    traced: dict[str, graph.Traced], runner: GraphRunner, artefact: Artefact,
    inputs: dict[str, np.ndarray], exported: DeployedPolicy,
) -> dict[str, Difference]:  # fmt: skip
    """Return the difference of each stage, all with PyTorch's results as inputs."""
    differences: dict[str, Difference] = {}

    def run(name: str, label: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compare one stage, note its difference and return PyTorch's outputs."""
        ports = artefact.manifest.graphs[name].inputs
        outputs = runner.run(name, {port.name: values[port.name] for port in ports})
        expected = traced[name].run(values)
        differences[label] = between([(x, outputs[key]) for key, x in expected.items()])
        return expected

    values = inputs
    for name in (*artefacts.STAGES[:-1], artefacts.ACT):
        if name in artefact.manifest.graphs:
            values = {**values, **run(name, name, values)}
    late = exported.steps - exported.manifest.ft_denoising_steps
    for i, at in enumerate(exported.chain):
        name = artefacts.DENOISE_FT if i >= late else artefacts.STAGES[-1]
        timestep = np.array([at.timestep], np.int64)
        run(name, f"{name}, timestep {at.timestep}", {**values, "timestep": timestep})
    return differences


def closed_loop(
    reference: Path,
    exported: Path,
    episodes: int,
    seed: int,
    target: str = "onnxruntime",
    robot: str = "",
) -> ClosedLoop:
    """Run a checkpoint and its exported policy on the same episodes in simulation.

    Raises:
        ValueError: `vla eval` refuses one of them; it has printed why.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for i, place in enumerate((reference, exported)):
            out = Path(folder) / str(i)
            words = ["eval", str(place), "--episodes", str(episodes), "--seed", str(seed),
                     "--videos", "0", "--out", str(out),
                     *(("--targets", target) if i else ()),
                     *(("--robot", robot) if robot and not i else ())]  # fmt: skip
            line = [sys.executable, "-m", "vla.cli", *words]
            if subprocess.run(line, check=False).returncode:
                raise ValueError(f"`vla {' '.join(words)}` failed; see its message above")
            rows.append(np.array(json.loads((out / "evaluation.json").read_text())["success"]))
    return paired(rows[0], rows[1])


def paired(torch_success: np.ndarray, exported_success: np.ndarray) -> ClosedLoop:
    """Return the paired difference of two successes bool [n] on the same episodes."""
    return ClosedLoop(
        torch=float(torch_success.mean()),
        exported=float(exported_success.mean()),
        low=pairs.difference(torch_success, exported_success).low,
        episodes=len(torch_success),
    )


def sheet(result: PolicyComparison, loop: ClosedLoop | None, precision: str) -> Table:
    """Return the results as a table."""
    table = difference.sheet(precision, result.stages)
    table.add_row(
        f"action, {result.decisions:,} decisions", f"{result.action:.1e} of the joint's range",
        f"{result.cosine:.7f}",
    )  # fmt: skip
    table.add_row("decisions after which memories differed", f"{result.parted}", "")
    if loop:
        table.add_row(
            f"success, {loop.episodes} episodes: PyTorch / exported",
            f"{loop.torch:.1%} / {loop.exported:.1%}", "",
        )  # fmt: skip
        table.add_row("difference, lower 95 % bound", f"{100 * loop.low:+.1f} points", "")
    return table


def failures(result: PolicyComparison, loop: ClosedLoop | None, precision: str) -> list[str]:
    """Return a sentence for each exceeded budget; below FP32 the closed loop decides on actions."""
    wrong = []
    if not np.isfinite(result.action):
        wrong.append("actions are not finite")
    elif precision == "fp32" and not result.action <= BUDGET:
        wrong.append(f"actions differ by {result.action:.1e} of the range, at most {BUDGET:.0e}")
    if precision == "fp32" and result.parted:
        wrong.append(f"memories parted in {result.parted} of {result.decisions} decisions")
    if loop and not loop.within_margin:
        wrong.append(
            f"success may have fallen by {-100 * loop.low:.1f} points, at most {100 * MARGIN:.0f}"
        )
    return wrong


def main(argv: list[str]) -> int:
    """Run `vla verify-export FOLDER`; return the exit code, 1 if a budget is exceeded.

    Raises:
        ValueError: something is damaged, or the two do not belong together.
    """
    if not argv or argv[0].startswith("-"):
        print(
            "usage: vla verify-export FOLDER --reference-checkpoint CHECKPOINT|REWARD_MODEL "
            "--dataset DATASET [--episodes N]"
        )
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    folder = Path(argv[0])
    if artefacts.kind_of(folder) == "reward_model":
        return reward_model_verify.main(argv)
    args = arguments.read(VerifyExportArgs, argv[1:], "vla verify-export FOLDER")
    artefact = artefacts.read(folder)
    manifest = artefact.manifest
    policy, origin = checkpoint.load_vla(args.reference_checkpoint, "verify-export")
    policy = checkpoint.for_robot(policy, manifest.robot.name)
    policy.float()  # as `vla export` does
    artefact.check_origin(origin.task, origin.step)
    torch.set_num_threads(1)
    store = recorded.load(args.dataset, policy)
    active = target_selection.open_policy(artefact, args.targets, 1)
    for line in active.refused:
        print(f"refused target {line}")
    runner: GraphRunner = target_selection.config(active.target, 1).open(artefact)
    result = compare(policy, artefact, runner, store, args)
    loop = None
    if args.episodes:
        loop = closed_loop(
            args.reference_checkpoint, folder, args.episodes, args.seed, active.target,
            manifest.robot.name,
        )  # fmt: skip
    Console(highlight=False).print(sheet(result, loop, manifest.precision))
    wrong = failures(result, loop, manifest.precision)
    closed = dataclasses.asdict(loop) if loop else None
    return difference.conclude(
        folder, manifest, result, wrong, closed_loop=closed, target=active.target
    )
