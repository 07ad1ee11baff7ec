"""`vla parity`: is an exported policy the checkpoint's? By stage, by action, in closed loop.

Both see the same recorded observations and the same noise. Stages are given the same inputs, so
that what is found belongs to the stage; a long episode lets each keep its own memory.
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

from deploy import artefact as artefacts
from deploy import difference, graph, order, recorded
from deploy.artefact import Artefact
from deploy.critic import parity as critic_parity
from deploy.difference import Difference, between, cosine, worst_of
from deploy.policy import DeployedPolicy, Engine
from vla import arguments, checkpoint
from vla import paired as pairs
from vla.contracts.config import check_least
from vla.contracts.types import Prefix
from vla.data.store import EpisodeStore
from vla.policies.vla import VLAPolicy

BUDGET = 1e-4
"""Largest difference of an action, as a share of its joint's range, where numbers are FP32."""
MARGIN = 0.05
"""Success that may be lost in closed loop."""


@dataclass(frozen=True, kw_only=True)
class ParityArgs:
    """Compare an exported policy with its checkpoint."""

    against: Path
    """The checkpoint it was exported from."""
    data: Path
    """Recorded observations: a data set of its task."""
    decisions: int = 2000
    """Length of the episode in which each keeps its own memory."""
    stages: int = 100
    """Decisions at which every stage is compared."""
    episodes: int = 200
    """Episodes of the closed loop in simulation; 0 for none."""
    target: str = "onnxruntime"
    """Who runs the exported policy."""
    seed: int = 3000
    """Seed of those, and of the noise."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, decisions=1, stages=1, episodes=0, seed=0)
        order.check_graphs((self.target,))
        same = np.ones(self.episodes, np.bool_)
        if self.episodes and not paired(same, same).kept:
            raise ValueError(
                f"episodes: got {self.episodes}, too few to tell a loss of {100 * MARGIN:.0f} "
                "points even if all end alike; give 38 or more, or 0 for no closed loop"
            )


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found in recorded observations."""

    stages: dict[str, Difference]
    """By stage, in the stage's own units."""
    action: float
    """Largest difference of an action in the long episode, as a share of its joint's range."""
    cosine: float
    """Least cosine of two chunks."""
    parted: int
    """Decisions after which the memories had merged different entries."""
    decisions: int
    """Length of the episode."""


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Success on the same episodes."""

    torch: float
    """Of the checkpoint."""
    exported: float
    """Of the exported policy."""
    low: float
    """Lower 95 % bound of the difference, paired."""
    episodes: int
    """How many."""

    @property
    def kept(self) -> bool:
        """Whether no more than the margin is lost."""
        return self.low > -MARGIN


def compare(
    policy: VLAPolicy, artefact: Artefact, engine: Engine, store: EpisodeStore, args: ParityArgs
) -> Found:
    """Return how far an exported policy is from its checkpoint on recorded observations."""
    exported = DeployedPolicy(artefact, engine)
    rng = np.random.default_rng(args.seed)
    spread = np.array(policy.robot.high, np.float32) - np.array(policy.robot.low, np.float32)
    traced = graph.trace(policy, 1)
    at = set(np.linspace(0, args.decisions - 1, args.stages).astype(int).tolist())
    stages: dict[str, list[Difference]] = {}
    worst, cosines, parted = 0.0, [], 0
    torch_state, state = policy.initial_state(1), exported.initial_state(1)
    ours = np.tile(np.array(policy.robot.home, np.float32), (1, policy.config.chunk, 1))
    seen = recorded.observations(store, policy.robot.control_hz, args.decisions)
    for i, obs in enumerate(track(seen, "comparing", total=args.decisions, transient=True)):
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        if i in at:
            inputs = exported.inputs(obs, state, noise)
            for name, one in _stages(traced, engine, artefact, inputs, exported).items():
                stages.setdefault(name, []).append(one)
        prefix = _prefix(policy, ours, i)
        chunk, torch_state = policy.act(obs, torch_state, noise, prefix)
        other, state = exported.act(obs, state, noise, prefix)
        ours, theirs = chunk.values.numpy(), np.asarray(other.values)
        worst = float(np.maximum(worst, np.abs((ours - theirs) / spread).max()))  # NaN stays
        cosines.append(cosine(ours, theirs))
        parted += not np.array_equal(torch_state.slot_count.numpy(), state.slot_count)
    return Found(
        stages={n: worst_of(f) for n, f in stages.items()},
        action=worst, cosine=float(np.min(cosines)), parted=parted, decisions=args.decisions,
    )  # fmt: skip


def _prefix(policy: VLAPolicy, values: np.ndarray, decision: int) -> Prefix | None:
    """Return the last chunk f32 [1, k, u] as a prefix, of none to all that the policy goes on from,
    each number of them in turn; None where it was not trained to.
    """
    if not policy.prefix:
        return None
    settled = np.arange(policy.config.chunk)[None] < decision % (policy.prefix + 1)
    return Prefix(values=values, weight=settled.astype(np.float32))


@torch.no_grad()
def _stages(
    traced: dict[str, graph.Traced], engine: Engine, artefact: Artefact,
    known: dict[str, np.ndarray], exported: DeployedPolicy,
) -> dict[str, Difference]:  # fmt: skip
    """Return how far each stage is from torch, all being given what torch gives."""
    found: dict[str, Difference] = {}
    for name in (*artefacts.STAGES[:-1], artefacts.WHOLE):
        if name in artefact.manifest.graphs:
            known = {**known, **_stage(name, traced, engine, artefact, known, found, name)}
    for step, at in enumerate(exported.chain):
        late = exported.manifest.late and step >= exported.steps - exported.manifest.late
        name = artefacts.LATE if late else artefacts.STAGES[-1]
        asked = {**known, "t": np.array([at.timestep], np.int64)}
        _stage(name, traced, engine, artefact, asked, found, f"{name}, timestep {at.timestep}")
    return found


def _stage(
    name: str, traced: dict[str, graph.Traced], engine: Engine, artefact: Artefact,
    known: dict[str, np.ndarray], found: dict[str, Difference], label: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Compare one stage, note it, and return what torch gives."""
    one, ports = traced[name], artefact.manifest.graphs[name].inputs
    asked = [torch.from_numpy(np.asarray(known[key])) for key in one.inputs]
    ours = [part.numpy() for part in one.function(*asked)]
    theirs = engine.run(name, {port.name: known[port.name] for port in ports})
    pairs = [(a, theirs[n]) for a, n in zip(ours, one.outputs, strict=True)]
    found[label] = between(pairs)
    return dict(zip(one.outputs, ours, strict=True))


def closed_loop(
    first: Path, second: Path, episodes: int, seed: int, target: str = "onnxruntime"
) -> ClosedLoop:
    """Run a checkpoint and what was exported of it on the same episodes in simulation.

    Raises:
        ValueError: `vla eval` refuses one of them; it has said why.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for i, place in enumerate((first, second)):
            out = Path(folder) / str(i)
            words = ["eval", str(place), "--episodes", str(episodes), "--seed", str(seed),
                     "--videos", "0", "--out", str(out),
                     *(("--targets", target) if i else ())]  # fmt: skip
            line = [sys.executable, "-m", "vla.cli", *words]
            if subprocess.run(line, check=False).returncode:
                raise ValueError(f"`vla {' '.join(words)}` failed; mend what it says above")
            rows.append(np.array(json.loads((out / "evaluation.json").read_text())["success"]))
    return paired(rows[0], rows[1])


def paired(torch_success: np.ndarray, exported_success: np.ndarray) -> ClosedLoop:
    """Return the difference of two successes bool [n] on the same episodes."""
    return ClosedLoop(
        torch=float(torch_success.mean()),
        exported=float(exported_success.mean()),
        low=pairs.difference(torch_success, exported_success).low,
        episodes=len(torch_success),
    )


def sheet(found: Found, loop: ClosedLoop | None, precision: str) -> Table:
    """Return what was found as a table."""
    table = difference.sheet(precision, found.stages)
    table.add_row(
        f"action, {found.decisions:,} decisions", f"{found.action:.1e} of the joint's range",
        f"{found.cosine:.7f}",
    )  # fmt: skip
    table.add_row("memories that merged other entries", f"{found.parted}", "")
    if loop:
        table.add_row(
            f"success, {loop.episodes} episodes: PyTorch / exported",
            f"{loop.torch:.1%} / {loop.exported:.1%}", "",
        )  # fmt: skip
        table.add_row("difference, lower 95 % bound", f"{100 * loop.low:+.1f} points", "")
    return table


def faults(found: Found, loop: ClosedLoop | None, precision: str) -> list[str]:
    """Return what lies beyond its budget; actions of coarser numbers are judged in closed loop."""
    wrong = []
    if not np.isfinite(found.action):
        wrong.append("actions are not finite")
    elif precision == "fp32" and not found.action <= BUDGET:
        wrong.append(f"actions differ by {found.action:.1e} of the range, at most {BUDGET:.0e}")
    if precision == "fp32" and found.parted:
        wrong.append(f"memories parted in {found.parted} of {found.decisions} decisions")
    if loop and not loop.kept:
        wrong.append(
            f"success may have fallen by {-100 * loop.low:.1f} points, at most {100 * MARGIN:.0f}"
        )
    return wrong


def main(argv: list[str]) -> int:
    """Run `vla parity FOLDER --against CHECKPOINT --data DATASET`; 1 beyond a budget.

    Raises:
        ValueError: something is damaged, or the two do not belong together.
    """
    if not argv or argv[0].startswith("-"):
        print("usage: vla parity FOLDER --against CHECKPOINT|CRITIC --data DATASET [--episodes N]")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    if artefacts.kind_of(Path(argv[0])) == "critic":
        return critic_parity.main(argv)
    args = arguments.read(ParityArgs, argv[1:], "vla parity FOLDER")
    folder = Path(argv[0])
    artefact = artefacts.read(folder)
    policy, origin = checkpoint.load_ours(args.against, "parity")
    policy.float()  # as `vla export` does
    manifest = artefact.manifest
    artefact.check_origin(origin.task, origin.step)
    torch.set_num_threads(1)
    store = recorded.load(args.data, policy)
    engine: Engine = order.config(args.target, 1).open(artefact)
    found = compare(policy, artefact, engine, store, args)
    loop = None
    if args.episodes:
        loop = closed_loop(args.against, folder, args.episodes, args.seed, args.target)
    Console(highlight=False).print(sheet(found, loop, manifest.precision))
    wrong = faults(found, loop, manifest.precision)
    closed = dataclasses.asdict(loop) if loop else None
    return difference.conclude(
        folder, manifest, found, wrong, closed_loop=closed, target=args.target
    )
