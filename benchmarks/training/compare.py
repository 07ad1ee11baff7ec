"""`vla bench compare`: several policies in one run, by success and by the time of a decision.

For students and their teacher, int8 and FP32, more or fewer denoising steps. All act in the same
episodes with the same noise; they are timed in turns, call by call.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.progress import track
from rich.table import Table

from benchmarks import harness, peak_memory
from sim import vec_env
from training.core import runtime
from training.evaluation.evaluate import evaluate
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.runtime import policy_loader
from vla.runtime.policy_loader import LoadedPolicy
from vla.utils import arguments, files, paired

WARM = 50
"""Calls before the clock counts."""
WIDTH = 160
"""Columns of the table."""
SHARES = (50, 99)
"""Percentiles."""


@dataclass(frozen=True, kw_only=True)
class CompareArgs:
    """Compare policies of one task: success on the same episodes, time and memory."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Checkpoints or exported policies; the others are compared with the first."""
    out: Path = Path("runs/bench-compare")
    """Folder of compare.json."""
    episodes: int = 200
    """Episodes of each; 0 for times alone."""
    calls: int = 1000
    """Timed decisions of each, batch 1, on one core."""
    seed: int = 1000
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=0, calls=10, seed=0)
        if len(self.policies) < 2:
            raise ValueError(
                f"policies: got {len(self.policies)}, expected two or more: the others are "
                "compared with the first"
            )


def open_all(folders: tuple[Path, ...]) -> list[LoadedPolicy]:
    """Return the policies in some folders.

    Raises:
        ValueError: one is damaged, or they are not of one task.
    """
    opened = [policy_loader.open_policy(folder, threads=1) for folder in folders]
    first = opened[0].task
    for policy, folder in zip(opened, folders, strict=True):
        if policy.task != first:
            raise ValueError(
                f"{folder}: a policy of {policy.task.get('type')}, the first is of "
                f"{first.get('type')} or of other settings; compare policies of one task"
            )
    return opened


def times(policies: list[ArmPolicy], obs: Observation, calls: int, seed: int) -> np.ndarray:
    """Return the seconds f64 [calls, n] of one decision of each policy; they take turns.

    On a CPU a call has ended when it returns. The memory of each continues from call to call.
    """
    rng, states = np.random.default_rng(seed), [p.initial_state(1) for p in policies]
    seconds = np.zeros((WARM + calls, len(policies)))
    for k in track(range(WARM + calls), "taking turns", transient=True):
        for j in range(len(policies)):
            i = (j + k) % len(policies)  # the first warms the cache for the next
            noise = rng.standard_normal((1, *policies[i].noise_shape), np.float32)
            begin = time.perf_counter()
            _, states[i] = policies[i].act(obs, states[i], noise)
            seconds[k, i] = time.perf_counter() - begin
    return seconds[WARM:]


def measure(args: CompareArgs, opened: list[LoadedPolicy]) -> list[dict[str, Any]]:
    """Return the results of each policy, as JSON types."""
    task = configs.from_json(None, opened[0].task, f"{args.policies[0]}: task", vec_env.TASKS)
    wins = [
        np.array(
            evaluate(p.policy, task, episodes=args.episodes, seed=args.seed, quiet=False).success
        )
        for p in opened
        if args.episodes
    ]
    seconds = times(
        [p.policy for p in opened], observed(opened[0].policy, task), args.calls, args.seed
    )
    rows: list[dict[str, Any]] = []
    for i, folder in enumerate(args.policies):
        p50, p99 = (float(t) for t in np.percentile(seconds[:, i], SHARES))
        row: dict[str, Any] = {
            "policy": str(folder), "p50_s": p50, "p99_s": p99,
            "steps": opened[i].policy.noise_shape[0] - 1,
            "times_as_fast": float(np.median(seconds[:, 0])) / p50,
            "peak_mb": peak_memory.peak_mb(folder),
        }  # fmt: skip
        if wins:
            row["success"] = [int(wins[i].sum()), len(wins[i])]
            row["difference"] = list(paired.difference(wins[0], wins[i]))
        rows.append(row)
    return rows


def observed(policy: ArmPolicy, task: Any) -> Observation:
    """Return an observation of one arm, with a time in the middle of an episode."""
    env = vec_env.make(configs.type_name(task), 1, robot=policy.robot, task_config=task)
    try:
        first = env.reset(0)
    finally:
        env.close()
    return Observation(
        images=first.images, image_ok=first.image_ok, proprio=first.proprio, task=first.task,
        time_s=np.array([policy.n_action_steps / policy.robot.control_hz]),
    )  # fmt: skip


def sheet(rows: list[dict[str, Any]]) -> Table:
    """Return the results as a table."""
    cells = []
    for row in rows:
        success, difference = "", ""
        if "success" in row:
            success = harness.share(*row["success"])
            value, low, high = (100 * x for x in row["difference"])
            difference = f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
        cells.append((
            row["policy"], row["steps"], success, difference, f"{1e3 * row['p50_s']:.2f}",
            f"{1e3 * row['p99_s']:.2f}", f"{row['times_as_fast']:.2f}", f"{row['peak_mb']:.0f}",
        ))  # fmt: skip
    return harness.table(
        "one decision, batch 1, one core; success on the same episodes",
        ("policy", "steps", "success, 95 %", "less the first's, points", "p50, ms", "p99, ms",
         "times as fast", "peak, MB"), cells,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the verb.

    Raises:
        ValueError: a policy is damaged, or they are not of one task.
    """
    args = arguments.read(CompareArgs, argv, "vla bench compare")
    runtime.prepare(1)
    opened = open_all(args.policies)
    args.out.mkdir(parents=True, exist_ok=True)  # before the work: it may fail
    rows = measure(args, opened)
    harness.show(sheet(rows), WIDTH)
    files.write_json(args.out / "compare.json", rows)
    print(f"results: {args.out / 'compare.json'}")
    return 0
