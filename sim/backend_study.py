"""Measures whether the scripted experts succeed as often on one backend as on another.

Both play the same episodes. Pictures are drawn once an episode, at its end: no expert looks at
them.

`python -m sim.backend_study --backends mujoco_cpu mujoco_warp --episodes 100`
"""

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np

from sim import vec_env
from sim.report import LONGEST_CHUNK
from vla import cli
from vla.contracts import registry
from vla.paired import difference
from vla.statistics import wilson

BAR_POINTS = 2.0


class Played(NamedTuple):
    """What became of the episodes of a task on a backend."""

    success: np.ndarray
    """Bool [n]."""
    fault: np.ndarray
    """Whether the simulation of the episode went wrong, bool [n]."""
    steps_per_s: float
    """Control steps per second, all environments together, the expert's thinking included."""


def play(task: str, backend: str, episodes: int, num_envs: int, seed: int) -> Played:
    """Play episodes 0 to n-1 of a seed with the task's expert, so many at a time.

    Raises:
        ValueError: a name is unknown, or the backend is not to be had here.
    """
    success, fault = np.zeros(episodes, np.bool_), np.zeros(episodes, np.bool_)
    env = vec_env.make(task, min(num_envs, episodes), backend=backend)
    try:
        every = np.arange(env.num_envs)
        home = np.array(env.spec.robot.home, np.float32)
        chunk = np.tile(home, (env.num_envs, LONGEST_CHUNK, 1))
        begin_s, steps = time.perf_counter(), 0
        for first in range(0, episodes, env.num_envs):
            index = first + every
            used = index < episodes
            env.begin(every, np.full_like(every, seed), index)
            running = used.copy()
            while running.any():
                step = env.step_chunk(chunk, helped=running, idle=~running)
                ended = running & (step.terminated | step.truncated)
                success[index[ended]] = step.info["success"][ended]
                wrong = step.info.get("fault", np.zeros_like(ended))
                fault[index[ended]] = wrong[ended]
                steps += int(step.info["steps"][running].sum())
                running &= ~ended
        return Played(success, fault, steps / (time.perf_counter() - begin_s))
    finally:
        env.close()


def main(argv: list[str] | None = None) -> int:
    """Print a line per task and backend; exit code 1 if any difference is beyond the bar.

    Raises:
        ValueError: a name is unknown or a number out of range.
    """
    parser = argparse.ArgumentParser(prog="python -m sim.backend_study", description=__doc__)
    names = registry.names("sim.backends")
    parser.add_argument("--backends", nargs=2, choices=names, default=["mujoco_cpu", "mujoco_warp"])
    parser.add_argument("--tasks", nargs="+", choices=registry.names("sim.tasks"))
    parser.add_argument("--episodes", type=int, default=100, help="per task (default 100)")
    parser.add_argument("--envs", type=int, default=50, help="played at a time (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes (default 0)")
    args = parser.parse_args(argv)
    for name, least in (("episodes", 1), ("envs", 1), ("seed", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name}: got {getattr(args, name)}, expected at least {least}")
    worst = 0.0
    for task in args.tasks or registry.names("sim.tasks"):
        played = {}
        for backend in args.backends:
            played[backend] = play(task, backend, args.episodes, args.envs, args.seed)
            print(f"{task:12} {backend:12} {_describe(played[backend])}", flush=True)
        first, second = (played[backend].success for backend in args.backends)
        points = 100.0 * (second.mean() - first.mean())
        interval = difference(first, second)
        worst = max(worst, abs(points))
        print(
            f"{task:12} difference   {points:+.1f} points (95 % interval "
            f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}; bar {BAR_POINTS:g}: "
            f"{'met' if abs(points) <= BAR_POINTS else 'missed'}), solved by one alone: "
            f"{int((first & ~second).sum())} and {int((second & ~first).sum())}",
            flush=True,
        )
    return 0 if worst <= BAR_POINTS else 1


def _describe(played: Played) -> str:
    solved, episodes = int(played.success.sum()), len(played.success)
    low, high = wilson(solved, episodes)
    return (
        f"{solved} of {episodes} ({low:.1%} to {high:.1%}), {int(played.fault.sum())} faults, "
        f"{played.steps_per_s:.0f} control steps/s"
    )


if __name__ == "__main__":
    sys.exit(cli.run("sim.backend_study:main", sys.argv[1:]))
