"""Measures how often the scripted experts succeed, with an interval; renders nothing.

`python -m benchmarks.sim.expert_study --task pick_place --robot so101 --seeds 200`
"""

import sys
from dataclasses import dataclass

from benchmarks import harness
from sim.experts.episode import record_episode
from vla import cli
from vla.contracts import registry
from vla.contracts.config import validate_min

BAR = 0.98


@dataclass(frozen=True, kw_only=True)
class Study:
    """Measure how often the scripted experts succeed."""

    task: str | None = None
    """Task; every task if not given."""
    robot: str | None = None
    """Robot; every robot if not given."""
    seeds: int = 200
    """Episodes of each task and robot, one per seed."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(self, seeds=1)
        for folder, name in (("sim.tasks", self.task), ("vla.robots", self.robot)):
            if name is not None:
                registry.check(folder, name)


def measure(task: str, robot: str, seeds: int) -> tuple[list[int], float]:
    """Run one episode per seed.

    Returns:
        failed: Seeds on which the expert failed.
        steps: Mean length of an episode in control steps.
    """
    failed, steps = [], 0
    for seed in range(seeds):
        record = record_episode(task, seed, 0, robot=robot, render=False)
        steps += len(record.success)
        if not record.success[-1]:
            failed.append(seed)
    return failed, steps / seeds


def main(argv: list[str]) -> int:
    """Print a line per task and robot; exit code 1 if any falls below 98 %."""
    args = harness.read(Study, argv, "sim.expert_study")
    worst = 1.0
    for task in [args.task] if args.task else registry.names("sim.tasks"):
        for robot in [args.robot] if args.robot else registry.names("vla.robots"):
            failed, steps = measure(task, robot, args.seeds)
            successes = args.seeds - len(failed)
            print(
                f"{task:12} {robot:8} {harness.rate(successes, args.seeds):>7} "
                f"(95 % interval {harness.interval(successes, args.seeds)}), "
                f"{steps:.0f} steps, failed seeds {failed[:10]}",
                flush=True,
            )
            worst = min(worst, successes / args.seeds)
    return 0 if worst >= BAR else 1


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.expert_study:main", sys.argv[1:]))
