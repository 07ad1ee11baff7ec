"""`vla bench policy`: the time of one decision on one core; does it grow with the episode?"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vla import arguments, checkpoint
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Observation, PolicyState
from vla.policies.vla import VLAPolicy

YOUNG = 10
"""Decision at which an episode counts as young."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Time the decisions of a checkpoint, batch 1, on one core, in PyTorch."""

    checkpoint: Path = Path("runs/demo/bank")
    """Folder that `vla train` wrote."""
    decisions: int = 10_000
    """Length of the episode, in decisions."""
    pairs: int = 500
    """Interleaved timings of a young and of an old memory."""
    seed: int = 0
    """Seed of images and noise."""


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
    policy: VLAPolicy, obs: Observation, state: PolicyState, noise: np.ndarray
) -> tuple[float, PolicyState]:
    """Return the seconds of one decision, and the new state."""
    begin = time.perf_counter()
    _, state = policy.act(obs, state, noise)
    return time.perf_counter() - begin, state


def measure(args: BenchArgs) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds f64 [decisions] of a long episode, and [pairs, 2] of young and old memory.

    Raises:
        ValueError: no checkpoint, or an episode too short to grow old.
    """
    if args.decisions <= YOUNG:
        raise ValueError(f"decisions must be more than {YOUNG}, got {args.decisions}")
    policy, _ = checkpoint.load(args.checkpoint)
    rng = np.random.default_rng(args.seed)
    period_s = policy.config.execute / policy.robot.control_hz
    state, young = policy.initial_state(1), policy.initial_state(1)
    times = np.zeros(args.decisions)
    for k in track(range(args.decisions), "one long episode", transient=True):
        young = state if k == YOUNG else young
        obs = observe(policy.robot, k, period_s, rng)
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        times[k], state = decide_s(policy, obs, state, noise)
    pairs = np.zeros((args.pairs, 2))
    for i in range(args.pairs):
        both = [observe(policy.robot, k, period_s, rng) for k in (YOUNG, args.decisions)]
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        for j in (i % 2, 1 - i % 2):  # whichever goes first warms the cache for the other
            pairs[i, j], _ = decide_s(policy, both[j], (young, state)[j], noise)
    return times, pairs


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench policy")
    torch.set_num_threads(1)
    times, pairs = measure(args)
    p50, p99 = np.percentile(times[YOUNG:], (50, 99)) * 1e3
    young, old = np.median(pairs, axis=0) * 1e3
    table = Table(title=f"{args.checkpoint}: one decision, batch 1, one core, PyTorch")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row(f"p50 over decisions {YOUNG} to {args.decisions:,}", f"{p50:.2f} ms")
    table.add_row("p99", f"{p99:.2f} ms")
    table.add_row(f"median at decision {YOUNG} ({args.pairs} interleaved)", f"{young:.2f} ms")
    table.add_row(f"median at decision {args.decisions:,}", f"{old:.2f} ms")
    table.add_row("ratio old / young (flat: 0.95 to 1.05)", f"{old / young:.3f}")
    Console().print(table)
    return 0
