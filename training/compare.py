"""`vla bench compare`: several policies in one run, by success and by the time of a decision.

For students beside their teacher, eight bits beside FP32, more or fewer denoising steps. All play
the same episodes with the same noise; for their times they take turns call by call.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sim import vec_env
from training import host
from training.evaluate import evaluate
from vla import arguments, files, footprint, opening, paired, statistics
from vla.contracts import config as configs
from vla.contracts.config import check_least
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.opening import Opened

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
    """Checkpoints, or what `vla export` made of them; the others are compared with the first."""
    out: Path = Path("runs/bench-compare")
    """Folder of compare.json."""
    episodes: int = 200
    """Episodes of each; 0 for times alone."""
    calls: int = 1000
    """Timed decisions of each, batch 1, on one core."""
    seed: int = 1000
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=0, calls=10, seed=0)
        if len(self.policies) < 2:
            raise ValueError(
                f"policies: got {len(self.policies)}, expected two or more: the others are "
                "compared with the first"
            )


def open_all(folders: tuple[Path, ...]) -> list[Opened]:
    """Return the policies in some folders.

    Raises:
        ValueError: one is damaged, or they are not of one task.
    """
    found = [opening.open_(folder, threads=1) for folder in folders]
    for one, folder in zip(found, folders, strict=True):
        if one.task != found[0].task:
            raise ValueError(
                f"{folder}: a policy of {one.task.get('type')}, the first is of "
                f"{found[0].task.get('type')} or of other settings; compare policies of one task"
            )
    return found


def times(policies: list[ArmPolicy], obs: Observation, calls: int, seed: int) -> np.ndarray:
    """Return the seconds f64 [calls, n] of one decision of each, which take turns.

    On a CPU a call has ended when it returns. The memory of each goes on from call to call.
    """
    rng, states = np.random.default_rng(seed), [p.initial_state(1) for p in policies]
    found = np.zeros((WARM + calls, len(policies)))
    for k in track(range(WARM + calls), "taking turns", transient=True):
        for j in range(len(policies)):
            i = (j + k) % len(policies)  # who goes first warms the cache for the next
            noise = rng.standard_normal((1, *policies[i].noise_shape), np.float32)
            begin = time.perf_counter()
            _, states[i] = policies[i].act(obs, states[i], noise)
            found[k, i] = time.perf_counter() - begin
    return found[WARM:]


def measure(args: CompareArgs, opened: list[Opened]) -> list[dict[str, Any]]:
    """Return what was found of each policy, as JSON types."""
    task = configs.from_json(None, opened[0].task, f"{args.policies[0]}: task", vec_env.TASKS)
    wins = [
        np.array(
            evaluate(one.policy, task, episodes=args.episodes, seed=args.seed, quiet=False).success
        )
        for one in opened
        if args.episodes
    ]
    seconds = times(
        [one.policy for one in opened], observed(opened[0].policy, task), args.calls, args.seed
    )
    told: list[dict[str, Any]] = []
    for i, folder in enumerate(args.policies):
        p50, p99 = (float(t) for t in np.percentile(seconds[:, i], SHARES))
        one: dict[str, Any] = {
            "policy": str(folder), "p50_s": p50, "p99_s": p99,
            "steps": opened[i].policy.noise_shape[0] - 1,
            "times_as_fast": float(np.median(seconds[:, 0])) / p50,
            "peak_mb": footprint.peak_mb(folder),
        }  # fmt: skip
        if wins:
            one["success"] = [int(wins[i].sum()), len(wins[i])]
            one["difference"] = list(paired.difference(wins[0], wins[i]))
        told.append(one)
    return told


def observed(policy: ArmPolicy, task: Any) -> Observation:
    """Return an observation of one arm in the middle of an episode, as far as memory knows."""
    env = vec_env.make(configs.type_name(task), 1, robot=policy.robot, task_config=task)
    try:
        first = env.reset(0)
    finally:
        env.close()
    return Observation(
        images=first.images, image_ok=first.image_ok, proprio=first.proprio, task=first.task,
        time_s=np.array([policy.execute / policy.robot.control_hz]),
    )  # fmt: skip


def sheet(told: list[dict[str, Any]]) -> Table:
    """Return what was found as a table."""
    table = Table(title="one decision, batch 1, one core; success on the same episodes")
    columns = ("policy", "steps", "success, 95 %", "less the first's, points", "p50, ms",
               "p99, ms", "times as fast", "peak, MB")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for one in told:
        success, less = "", ""
        if "success" in one:
            won, of = one["success"]
            low, high = statistics.wilson(won, of)
            success = f"{won / of:.1%} ({100 * low:.1f} to {100 * high:.1f})"
            value, low, high = (100 * x for x in one["difference"])
            less = f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
        table.add_row(
            one["policy"], str(one["steps"]), success, less, f"{1e3 * one['p50_s']:.2f}",
            f"{1e3 * one['p99_s']:.2f}", f"{one['times_as_fast']:.2f}", f"{one['peak_mb']:.0f}",
        )  # fmt: skip
    return table


def main(argv: list[str]) -> int:
    """Run the verb.

    Raises:
        ValueError: a policy is damaged, or they are not of one task.
    """
    args = arguments.read(CompareArgs, argv, "vla bench compare")
    host.prepare(1)
    opened = open_all(args.policies)
    args.out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    told = measure(args, opened)
    Console(highlight=False, soft_wrap=True, width=WIDTH).print(sheet(told))
    files.write_json(args.out / "compare.json", told)
    print(f"figures: {args.out / 'compare.json'}")
    return 0
