"""`python -m benchmarks.sim.env_server_bench`: what the env server adds to a step.

A built-in task runs in this process as well, in turns of one run. A suite's task cannot: there the
time of a step is compared with the simulator's part of it.
"""

import contextlib
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sim import adapters, vec_env
from sim.backends.process import AdapterVecEnv, Config
from sim.gym_plugin import env_id
from sim.suites import gymnasium_env
from vla import cli
from vla.contracts.config import validate_min
from vla.utils import arguments

ROOT = Path(adapters.__path__[0]).parents[1]
BAR = 0.1
CHUNK = 8
"""Actions of one decision."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure the env server under a task with two cameras of 96 pixels."""

    task: str = "pick_place"
    """Built-in task, or SUITE/TASK."""
    steps: int = 200
    """Control steps of one turn."""
    turns: int = 7
    """Turns of each."""

    def __post_init__(self) -> None:
        """Refuse unknown tasks and numbers out of range."""
        vec_env.load_task(self.task)
        validate_min(self, steps=1, turns=1)


def main(argv: list[str]) -> int:
    """Measure and print; 1 if the env server takes 10 % of a single step or more."""
    args = arguments.read(BenchArgs, argv, "python -m benchmarks.sim.env_server_bench")
    if "/" in args.task:
        return _suite(args)
    table = Table("two cameras", "median ms", "its turns")
    shares = {}
    for length in (1, CHUNK):
        taken = measure(args.task, args.steps, args.turns, length)
        medians = {name: float(np.median(np.concatenate(turns))) for name, turns in taken.items()}
        what = "a single step" if length == 1 else f"a chunk of {length}"
        for name, turns in taken.items():
            each = " ".join(f"{1e3 * np.median(turn):.2f}" for turn in turns)
            table.add_row(f"{what}, {name}", f"{1e3 * medians[name]:.3f}", each)
        here, bridge = medians.values()
        shares[what] = (bridge - here, bridge / here - 1.0)
    Console(highlight=False).print(table)
    for what, (seconds, share) in shares.items():
        print(f"{what}: the env server adds {1e6 * seconds:.0f} us, {share:.1%} (bar {BAR:.0%})")
    return int(shares["a single step"][1] >= BAR)


def _suite(args: BenchArgs) -> int:
    """Measure a suite's task, moved by its expert if it has one, and print."""
    taken, inside = np.zeros((2, args.turns * args.steps))
    with contextlib.closing(vec_env.make(args.task, 1)) as env:
        env.reset(0)
        still = np.zeros((1, 1, len(env.spec.robot.channels)), np.float32)
        use_expert = np.full(1, env.has_expert)
        for i in range(-args.steps, len(taken)):  # the first turn warms up
            begin = time.perf_counter()
            env.step_chunk(still, use_expert)
            if i >= 0:
                taken[i], inside[i] = time.perf_counter() - begin, env.adapter_time_s
    added, simulator_s = float(np.median(taken - inside)), float(np.median(inside))
    print(f"a single step of {args.task}: {1e3 * simulator_s:.3f} ms in its simulator (median)")
    print(f"the env server adds {1e6 * added:.0f} us, {added / simulator_s:.1%} (bar {BAR:.0%})")
    return int(added / simulator_s >= BAR)


def measure(task: str, steps: int, turns: int, length: int = 1) -> dict[str, list[np.ndarray]]:
    """Return the seconds of each step of `length` actions, by turn, here and in the env server."""
    name = f"sim.gym_plugin:{env_id(task)}"
    inside = gymnasium_env.Config(name=name)
    outside = gymnasium_env.Config(name=name, interpreter=sys.executable, path=str(ROOT))
    robot = inside.arm()
    envs = {
        "in this process": Config().build(inside, robot, 1),
        "env server": Config().build(outside, robot, 1),
    }
    taken: dict[str, list[np.ndarray]] = {name: [] for name in envs}
    actions = _swing(envs["in this process"], steps, length)
    for turn in range(turns + 1):
        for name, env in envs.items():
            env.reset(0)
            seconds = np.zeros(steps)
            for i, action in enumerate(actions):
                begin = time.perf_counter()
                env.step_chunk(action)
                seconds[i] = time.perf_counter() - begin
            if turn:  # the first warms up
                taken[name].append(seconds)
    for env in envs.values():
        env.close()
    return taken


def _swing(env: AdapterVecEnv, steps: int, length: int) -> np.ndarray:
    """Return actions f32 [steps, 1, length, u] that move the arm about where it began."""
    home = env.reset(0).proprio
    wave = 0.15 * np.sin(np.arange(steps * length) * 0.3)
    return (home + wave.reshape(steps, 1, length, 1)).astype(np.float32)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.env_server_bench:main", sys.argv[1:]))
