"""The study of action heads: flow matching next to diffusion, by success and time of a decision.

`python -m benchmarks.training.head_study --task reach pick_place --seeds 0 1 2 --out runs/heads`

All train on the same demonstrations, batches and number of updates, and act in the same episodes
with several numbers of denoising steps, as exported policies. The prediction type is varied apart
from the path. Decisions are timed in turns, with the policies of the first seed. Every command is
printed, resumes, and can be run by itself.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from vla import cli
from vla.contracts import registry
from vla.contracts.config import validate_min

HEADS = {
    "diffusion": ("diffusion", "sample"),
    "flow_matching": ("flow_matching", "velocity"),
    "flow_matching_sample": ("flow_matching", "sample"),
    "diffusion_epsilon": ("diffusion", "epsilon"),
}
"""Head and prediction type, by name in this study."""
WIDTH = 110
"""Columns of the table."""
CALLS = 300
"""Timed decisions of each policy."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare action heads by success and time of a decision."""

    task: tuple[str, ...] = ("reach", "pick_place")
    """Tasks, by their recipes."""
    heads: tuple[
        Literal["diffusion", "flow_matching", "flow_matching_sample", "diffusion_epsilon"], ...
    ] = ("diffusion", "flow_matching", "flow_matching_sample", "diffusion_epsilon")
    """Heads."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of training."""
    steps: int = 0
    """Updates; the recipe's if 0."""
    demos: int = 0
    """Demonstrations; the recipe's number if 0."""
    sampling: tuple[int, ...] = (1, 2, 4, 10)
    """Denoising steps of a decision."""
    episodes: int = 200
    """Test episodes of each policy."""
    seed: int = 1000
    """Seed of the test episodes."""
    out: Path
    """Folder of the study."""

    def __post_init__(self) -> None:
        """Refuse unknown tasks and numbers out of range."""
        validate_min(self, steps=0, demos=0, episodes=1, seed=0)
        for task in self.task:
            registry.check("training.recipes", task)


def record(task: str, episodes: int, out: Path) -> list[str]:
    """Return the command, as words after `vla`, that records the demonstrations of a task."""
    return ["demos", task, "--episodes", str(episodes), "--out", str(_data(task, out))]


def train(task: str, head: str, seed: int, updates: int, out: Path) -> list[str]:
    """Return the command that trains one policy, which is evaluated afterwards."""
    kind, prediction = HEADS[head]
    return [
        "train", "--recipe", task, "--dataset", str(_data(task, out)),
        "--policy.head.type", kind, "--policy.head.prediction_type", prediction,
        "--seed", str(seed), "--steps", str(updates), "--eval.every", "0",
        "--eval.final-episodes", "0", "--out", str(_run(task, head, seed, out)),
    ]  # fmt: skip


def export(task: str, head: str, seed: int, steps: int, out: Path) -> list[str]:
    """Return the command that exports a policy with a number of denoising steps."""
    run = _run(task, head, seed, out)
    return ["export", str(run), "--num-inference-steps", str(steps),
            "--out", str(_exported(run, steps))]  # fmt: skip


def evaluate(policy: Path, episodes: int, seed: int) -> list[str]:
    """Return the command that tests an exported policy."""
    return [
        "eval", str(policy), "--episodes", str(episodes), "--seed", str(seed), "--videos", "0",
        "--out", str(_evaluated(policy)),
    ]  # fmt: skip


def clock(policies: list[Path], out: Path) -> list[str]:
    """Return the command that times several policies, which take turns."""
    named = [str(policy) for policy in policies]
    return ["bench", "compare", *named, "--episodes", "0", "--calls", str(CALLS), "--out", str(out)]


def table(task: str, study: Study) -> Table:
    """Return one row per head and number of steps, pooled over seeds."""
    times = {row["policy"]: row for row in harness.load(_times(task, study.out) / "compare.json")}
    rows = []
    for head in study.heads:
        for steps in study.sampling:
            policies = [_exported(_run(task, head, seed, study.out), steps) for seed in study.seeds]
            tests = [harness.evaluation(_evaluated(policy)) for policy in policies]
            count, timed = harness.pooled(tests), times[str(policies[0])]
            rows.append((
                head, steps, " ".join(f"{test['rate']:.1%}" for test in tests),
                harness.rate(*count), harness.interval(*count), f"{1e3 * timed['p50_s']:.2f}",
                f"{1e3 * timed['p99_s']:.2f}",
            ))  # fmt: skip
    return harness.table(
        f"{task}: success on the same episodes; one decision, batch 1, one core",
        ("head", "steps", "by seed", "all", "95 %", "p50, ms", "p99, ms"), rows,
    )  # fmt: skip


def run_missing(task: str, study: Study, console: Console) -> None:
    """Run the missing parts of one task."""
    recipe = registry.load("training.recipes", task).recipe()
    out, timed = study.out, []
    harness.must(record(task, study.demos or recipe.demos.episodes, out), console)
    for seed in study.seeds:
        for head in study.heads:
            harness.must(train(task, head, seed, study.steps or recipe.steps, out), console)
            for steps in study.sampling:
                policy = _exported(_run(task, head, seed, out), steps)
                if not policy.exists():
                    harness.must(export(task, head, seed, steps, out), console)
                if not (_evaluated(policy) / "evaluation.json").exists():
                    harness.must(evaluate(policy, study.episodes, study.seed), console)
                if seed == study.seeds[0]:
                    timed.append(policy)
    if not (_times(task, out) / "compare.json").exists():
        harness.must(clock(timed, _times(task, out)), console)


def _data(task: str, out: Path) -> Path:
    return out / f"data-{task}"


def _run(task: str, head: str, seed: int, out: Path) -> Path:
    return out / f"{task}-{head}-{seed}"


def _exported(run: Path, steps: int) -> Path:
    return run.with_name(f"{run.name}-steps{steps}")


def _evaluated(policy: Path) -> Path:
    return policy.with_name(f"{policy.name}-evaluated")


def _times(task: str, out: Path) -> Path:
    return out / f"times-{task}"


def main(argv: list[str]) -> int:
    """Run the missing parts and print the tables."""
    study, console = harness.read(Study, argv, "training.head_study"), Console()
    for task in study.task:
        run_missing(task, study, console)
    for task in study.task:
        harness.show(table(task, study), WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.head_study:main", sys.argv[1:]))
