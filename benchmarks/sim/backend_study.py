"""Measures whether the scripted experts succeed as often on one backend as on another.

Both run the same episodes. Images are rendered once per episode, at its end: no expert uses them.

`python -m benchmarks.sim.backend_study --backends mujoco_cpu mujoco_warp --episodes 100`
"""

import contextlib
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks import harness
from sim import vec_env
from sim.core.step_buffers import LONGEST_CHUNK
from sim.rollout import outcomes
from vla import cli
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.utils.paired import difference

BAR_POINTS = 2.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare the success of the scripted experts on two backends."""

    backends: tuple[str, str] = ("mujoco_cpu", "mujoco_warp")
    """Backends."""
    tasks: tuple[str, ...] = ()
    """Tasks; all if none are named."""
    episodes: int = 100
    """Episodes of each task."""
    envs: int = 50
    """Environments side by side."""
    seed: int = 0
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(self, episodes=1, envs=1, seed=0)
        for name in self.backends:
            registry.check("sim.backends", name)
        for name in self.tasks:
            registry.check("sim.tasks", name)


class Played(NamedTuple):
    """The episodes of a task on a backend."""

    success: np.ndarray
    """Bool [n]."""
    fault: np.ndarray
    """Whether the simulation of the episode failed, bool [n]."""
    steps_per_s: float
    """Control steps per second of all environments together, the expert's time included."""


def play(task: str, backend: str, episodes: int, num_envs: int, seed: int) -> Played:
    """Run episodes 0 to n-1 of a seed with the task's expert, `num_envs` side by side.

    Raises:
        ValueError: a name is unknown, or the backend is not available here.
    """
    env = vec_env.make(task, min(num_envs, episodes), backend=backend)
    with contextlib.closing(env):
        home = np.array(env.spec.robot.home, np.float32)
        chunk = np.tile(home, (env.num_envs, LONGEST_CHUNK, 1))
        begin_s = time.perf_counter()
        ended = outcomes(env, env.reset(seed), lambda *_: chunk, episodes, expert=True)
        seconds = time.perf_counter() - begin_s
    return Played(
        np.array([o.success for o in ended]), np.array([o.fault for o in ended]),
        sum(o.steps for o in ended) / seconds,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Print a line per task and backend; exit code 1 if any difference is beyond the bar.

    Raises:
        ValueError: a name is unknown or a number out of range.
    """
    args = harness.read(Study, argv, "sim.backend_study")
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
    return (
        f"{solved} of {episodes} ({harness.interval(solved, episodes)}), "
        f"{int(played.fault.sum())} faults, {played.steps_per_s:.0f} control steps/s"
    )


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.backend_study:main", sys.argv[1:]))
