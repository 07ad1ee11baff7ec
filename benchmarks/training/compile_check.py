"""What `torch.compile` compiles in training and in decisions, and whether it changes numbers.

`python -m benchmarks.training.compile_check --dataset DIR --out runs/compile_check`

A graph that is compiled again after every shape was seen costs seconds each time. Ends with exit
code 1 if there was one, or if numbers differ from those of eager mode.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from deploy.verify.torch_target import CompiledPolicy
from training.core import loop
from training.core.config import EvalConfig, TrainConfig
from training.core.metrics import read_metrics
from vla import checkpoint
from vla.contracts.config import validate_min
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class CompileCheck:
    """Train and decide with and without torch.compile, and count the graphs."""

    dataset: Path
    """Demonstrations of `reach`."""
    warm: int = 12
    """Updates, and decisions, in which graphs may be compiled; as many follow."""
    out: Path
    """Folder of the runs; it must not exist."""

    def __post_init__(self) -> None:
        validate_min(self, warm=1)


@dataclass
class Graphs:
    """How many graphs were compiled so far, noted after every update."""

    counts: list[int] = field(default_factory=list)

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Note the number after an update."""
        self.note()

    def on_rollouts(self, number: int, episodes: Any, rewards: Any, robot: Any) -> None:
        """There are none."""

    def note(self) -> None:
        """Note the number now."""
        self.counts.append(int(torch._dynamo.utils.counters["stats"]["unique_graphs"]))  # noqa: SLF001  there is no public one

    def report(self, what: str, warm: int, difference: float) -> bool:
        """Print what was found; return whether it is as it should be."""
        first, later = self.counts[warm - 1], self.counts[-1] - self.counts[warm - 1]
        print(
            f"{what}: {first} graphs in the first {warm}, {later} in the next {warm}; "
            f"largest difference from eager mode {difference:.1e}"
        )
        return first > 0 and later == 0 and difference < 1e-3


def observations(policy: VLAPolicy, count: int) -> list[Observation]:
    """Return `count` random observations of one episode."""
    rng, robot = np.random.default_rng(0), policy.robot
    views, camera = len(robot.cameras), robot.cameras[0]
    return [
        Observation(
            images=rng.integers(0, 256, (1, views, camera.height_px, camera.width_px, 3), np.uint8),
            image_ok=np.ones((1, views), np.bool_),
            proprio=np.array([robot.home], np.float32), task=("reach the red ball",),
            time_s=np.array([k * policy.n_action_steps / robot.control_hz]),
        )
        for k in range(count)
    ]  # fmt: skip


def decisions(policy: VLAPolicy, count: int, graphs: Graphs) -> float:
    """Decide with and without compilation; return the largest difference of an action."""
    fast, rng, largest = CompiledPolicy(policy), np.random.default_rng(1), 0.0
    ours, theirs = policy.initial_state(1), policy.initial_state(1)
    for seen in observations(policy, count):
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        slow, ours = policy.act(seen, ours, noise)
        quick, theirs = fast.act(seen, theirs, noise)
        graphs.note()
        largest = max(largest, float((slow.values - quick.values).abs().max()))
    return largest


def main(argv: list[str]) -> int:
    """Run the comparison; return 1 if graphs were compiled late or numbers differ."""
    args = arguments.read(CompileCheck, argv, "benchmarks.training.compile_check")
    losses, graphs = [], Graphs()
    for compiled in (False, True):
        config = TrainConfig(
            eval=EvalConfig(every=0, final_episodes=0), steps=2 * args.warm, log_every=1,
            compile=compiled, save_every=2 * args.warm,
        )  # fmt: skip
        out, callback = args.out / f"compiled_{compiled}", graphs if compiled else None
        loop.run(config, args.dataset, out, Console(stderr=True), callback=callback)
        losses.append(np.array([row["loss"] for row in read_metrics(out)]))
    eager, fast = losses
    good = graphs.report("updates", args.warm, float(np.abs(fast / eager - 1).max()))
    policy, _ = checkpoint.load_vla(args.out / "compiled_False", "compile_check")
    counted = Graphs()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()  # noqa: SLF001  there is no public one
    difference = decisions(policy.eval(), 2 * args.warm, counted)
    return 0 if counted.report("decisions", args.warm, difference) and good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
