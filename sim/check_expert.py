"""Measures how often the scripted experts succeed, with an interval; renders nothing.

`python -m sim.check_expert --task pick_place --robot so101 --seeds 200`
"""

import argparse
import sys

from sim.episode import record_episode
from vla.contracts import registry
from vla.statistics import wilson


def measure(task: str, robot: str, seeds: int) -> tuple[list[int], float]:
    """Play one episode per seed.

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


def main(argv: list[str] | None = None) -> int:
    """Print a line per task and robot; exit code 1 if any falls below 98 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=registry.names("sim.tasks"), help="default: every task")
    parser.add_argument(
        "--robot", choices=registry.names("vla.robots"), help="default: every robot"
    )
    parser.add_argument("--seeds", type=int, default=200, help="episodes per task and robot")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        raise ValueError(f"--seeds: got {args.seeds}, expected at least 1")
    worst = 1.0
    for task in [args.task] if args.task else registry.names("sim.tasks"):
        for robot in [args.robot] if args.robot else registry.names("vla.robots"):
            failed, steps = measure(task, robot, args.seeds)
            share = 1.0 - len(failed) / args.seeds
            low, high = wilson(args.seeds - len(failed), args.seeds)
            print(
                f"{task:12} {robot:8} {share:7.1%} (95 % interval {low:.1%} to {high:.1%}), "
                f"{steps:.0f} steps, failed seeds {failed[:10]}",
                flush=True,
            )
            worst = min(worst, share)
    return 0 if worst >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
